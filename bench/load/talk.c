#define _GNU_SOURCE
#include "talk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PADDING                                                                                                        \
    "The quick brown fox jumps over the lazy dog and then the dog, which was not so lazy after all, chased it over "   \
    "the hill and far away until evening."

/* ---- arguments ---- */

static char **arguments;
bool nchan;
static const char *prefix, *pids, *store_pids;
static uint64_t last_id;

const char *text_option(const char *name, const char *otherwise) {
    for (char **a = arguments; *a; a++)
        if (!strncmp(*a, name, strlen(name)) && (*a)[strlen(name)] == '=') return *a + strlen(name) + 1;
    return otherwise;
}

double option(const char *name, double otherwise) {
    const char *given = text_option(name, NULL);
    return given ? atof(given) : otherwise;
}

void talk_start(char **given) {
    arguments = given;
    nchan = !strcmp(text_option("profile", "relay"), "nchan");
    prefix = text_option("prefix", "s");
    pids = text_option("pids", "");
    store_pids = text_option("store_pids", "");
    last_id = now_ns() / 1000; /* ids differ from those of earlier works on the same server */
    net_start(option("port", 8000), text_option("token", ""), option("deflate", 0));
}

/* ---- messages, in the words of the server at hand ---- */

static line session_name(long i) {
    line l;
    snprintf(l.bytes, sizeof l, "%s_%ld", prefix, i);
    return l;
}

static line path_of(const char *what, long i) {
    line l;
    snprintf(l.bytes, sizeof l, "%s%s", what, session_name(i).bytes);
    return l;
}

/* One number for each other one, in no order (splitmix64). */
static uint64_t scrambled(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

/* Random, as most clients' are: ids that rise are easier on an index. */
line new_id(void) {
    uint64_t high = scrambled(++last_id), low = scrambled(high);
    line l;
    snprintf(l.bytes, sizeof l, "%08x-%04x-4%03x-8%03x-%012llx", (unsigned)(high >> 32), (unsigned)(high >> 16 & 0xffff),
             (unsigned)(high & 0xfff), (unsigned)(low >> 52), (unsigned long long)(low & 0xffffffffffff));
    return l;
}

void post_prompt(conn *c, long session, const char *id) {
    char body[1024];
    int n = snprintf(body, sizeof body,
                     "{\"session_id\":\"%s\",\"client_msg_id\":\"%s\",\"prompt\":\"" PADDING
                     "\",\"metadata\":{\"model\":\"m1\",\"lang\":\"en\",\"client\":\"web\"}}",
                     session_name(session).bytes, id);
    post(c, nchan ? path_of("/pub/p_", session).bytes : "/prompt", body, n);
}

/* The text tells when it was sent: a reader knows how long it took. */
void post_answer(conn *c, long session, const char *prompt_id) {
    char body[1024];
    int n = snprintf(body, sizeof body,
                     "{\"session_id\":\"%s\",\"client_msg_id\":\"%s\",\"assistant_msg_id\":\"%s\","
                     "\"text\":\"T=%020llu;" PADDING "\",\"metadata\":{\"model\":\"m1\"}}",
                     session_name(session).bytes, prompt_id, new_id().bytes, (unsigned long long)now_ns());
    post(c, nchan ? path_of("/pub/r_", session).bytes : "/response", body, n);
}

void get_page(conn *c, long session, long offset) {
    char query[1200];
    snprintf(query, sizeof query, "%s?limit=%d&offset=%ld", path_of("/messages/", session).bytes, PAGE, offset);
    get(c, query, "");
}

void poll_prompts(conn *c, long session) {
    char more[256] = "";
    if (c->etag[0])
        snprintf(more, sizeof more, "If-None-Match: %s\r\nIf-Modified-Since: %s\r\n", c->etag, c->modified);
    line path = path_of(nchan ? "/sub/p_" : "/prompts/", session);
    get(c, nchan ? path.bytes : strcat(path.bytes, "?timeout=60"), more);
}

conn *listen_to(long session, frame_fn *on_frame, int index) {
    return open_ws(strdup(path_of(nchan ? "/sub/r_" : "/ws/", session).bytes), on_frame, index);
}

static void copy_header(char out[64], const char *head, size_t head_length, const char *name) {
    size_t n = 0;
    const char *value = header(head, head_length, name, &n);
    if (value && n < 64) snprintf(out, 64, "%.*s", (int)n, value);
}

void remember_place(conn *c, const char *head, size_t head_length) {
    if (!nchan) return;
    copy_header(c->etag, head, head_length, "Etag");
    copy_header(c->modified, head, head_length, "Last-Modified");
}

void check(bool right, const char *what, int status, const char *body, size_t length) {
    if (right) return;
    char told[64];
    snprintf(told, sizeof told, "%s, status %d", what, status);
    complain(told, body, length);
}

void check_kept(int status, const char *expected, const char *body, size_t length) {
    bool kept = nchan ? status / 100 == 2 : status == 200 && contains(body, length, expected);
    check(kept, "a post was not taken", status, body, length);
}

/* ---- what is measured ---- */

static bool running;
uint64_t began_ns;
static double own0, server0, store0;
static uint32_t *samples; /* tenths of a microsecond */
static size_t taken, capacity;

void sample(uint64_t nanoseconds) {
    if (!running) return;
    if (taken == capacity) samples = realloc(samples, (capacity = capacity ? capacity * 2 : 1 << 16) * sizeof *samples);
    samples[taken++] = nanoseconds / 100 > UINT32_MAX ? UINT32_MAX : nanoseconds / 100;
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

void sort_samples(void) { qsort(samples, taken, sizeof *samples, by_size); }

double percentile(double p) { return taken ? samples[(size_t)(p * (taken - 1))] / 10.0 : 0; }

void begin(void) {
    taken = 0;
    running = true;
    began_ns = now_ns();
    own0 = own_cpu_seconds();
    server0 = cpu_seconds(pids);
    store0 = cpu_seconds(store_pids);
}

double elapsed(void) { return (now_ns() - began_ns) / 1e9; }

void report(long operations) {
    double seconds = elapsed(), own = own_cpu_seconds() - own0;
    double of_server = cpu_seconds(pids) - server0, of_store = cpu_seconds(store_pids) - store0;
    double each = operations ? 1e6 / operations : 0;
    running = false;
    sort_samples();
    printf("{\"operations\":%ld,\"seconds\":%.3f,\"cpu_us\":%.3f,\"store_cpu_us\":%.3f,\"server_share\":%.3f,"
           "\"load_share\":%.3f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f,\"wrong\":%ld}\n",
           operations, seconds, of_server * each, of_store * each, of_server / seconds, own / seconds, percentile(0.5),
           percentile(0.99), percentile(1), wrong);
    fflush(stdout);
}

/* Until the server has done all it had to do: it used next to no CPU, and not just because others had the core. */
void wait_until_quiet(void) {
    for (int i = 0, quiet = 0; i < 1500 && quiet < 3; i++) {
        double before = cpu_seconds(pids) + cpu_seconds(store_pids);
        for (uint64_t end = now_ns() + 20000000; now_ns() < end;) pump(5);
        quiet = cpu_seconds(pids) + cpu_seconds(store_pids) - before < 0.002 ? quiet + 1 : 0;
    }
}
