/* load: one work against one server, from one thread, and one line of JSON that says what it cost.
 *
 *   load requests  kind=prompt connections=64 seconds=1 sessions=64        the same request over and over
 *   load fanout    sockets=1000 posters=1 window=4 rate=0 seconds=1        answers to many sockets of one session
 *   load roundtrip sessions=64 seconds=1                                   prompt → poll → answer → socket
 *   load herd      polls=1000 seconds=1                                    many polls wait for one prompt
 *   load idle      sockets=10000 deflate=0                                 opens sockets, then obeys standard input
 *
 * Always: port=N, and if wanted profile=relay|nchan, token=…, prefix=… (of session names), pids=1,2 (whose CPU is
 * counted as the server's), store_pids=3 (counted apart). `seconds=0 count=N` sends exactly N requests: that seeds.
 * `first=N` begins with another session.
 * Every answer is looked at: what is not right is counted as `wrong`, so that a broken server never looks fast.
 */
#define _GNU_SOURCE
#include "talk.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATIENCE 30.0 /* seconds that a slow server gets to finish what it has begun */

/* ---- requests: a closed loop of one kind of request on each connection ---- */

static const char *kind;
static long sent, answered, limit, sessions, first, page_offset;

static void next_request(conn *c) {
    if (sent == limit) return;
    long i = first + sent++;
    /* A prime step visits all sessions in an order that no cache foresees. */
    long any = i * 7919 % sessions;
    if (!strcmp(kind, "seed")) post_prompt(c, i, "seed");
    else if (!strcmp(kind, "prompt")) post_prompt(c, any, new_id().bytes);
    else if (!strcmp(kind, "answer")) post_answer(c, any, "seed");
    else get_page(c, 0, page_offset);
}

static long occurrences(const char *text, size_t length, const char *what) {
    long n = 0;
    for (const char *at = text, *end = text + length; (at = memmem(at, end - at, what, strlen(what))); at++) n++;
    return n;
}

static void on_request_answered(conn *c, int status, const char *head, size_t head_length, const char *body, size_t length) {
    (void)head, (void)head_length;
    answered++;
    sample(now_ns() - c->sent_ns);
    if (!strcmp(kind, "page"))
        check(status == 200 && occurrences(body, length, "\"client_msg_id\"") == PAGE, "not a full page", status, body, length);
    else check_kept(status, !strcmp(kind, "answer") ? "\"ok\":true" : "\"stored\":true", body, length);
    next_request(c);
}

static void requests(void) {
    int connections = option("connections", 64);
    double seconds = option("seconds", 1);
    kind = text_option("kind", "prompt");
    sessions = option("sessions", 64);
    first = option("first", 0);
    page_offset = option("offset", 0);
    conn *all[connections];
    for (int i = 0; i < connections; i++) all[i] = open_http(on_request_answered, i);
    pump_until(&opened, connections, PATIENCE);
    limit = seconds > 0 ? -1 : option("count", 1);
    begin();
    for (int i = 0; i < connections; i++) next_request(all[i]);
    if (limit < 0) {
        while (elapsed() < seconds) pump(10);
        limit = sent;
    }
    /* Seeding takes as long as it takes, provided that it goes on. */
    for (long before = -1; answered < sent && answered > before;) {
        before = answered;
        pump_until(&answered, sent, PATIENCE);
    }
    wrong += sent - answered;
    report(answered);
}

/* Create sessions 0 … n-1, each with one prompt "seed"; answered, if polls are to wait. */
static void on_seeded(conn *c, int status, const char *head, size_t head_length, const char *body, size_t length) {
    (void)head, (void)head_length;
    c->count++;
    check(status == 200, "a seed was not taken", status, body, length);
}

static void seed(long n, bool answer_too) {
    if (nchan) return;
    conn *c = open_http(on_seeded, 0);
    long before = opened;
    pump_until(&opened, before + 1, PATIENCE);
    for (long i = 0; i < n; i++) {
        post_prompt(c, i, "seed");
        pump_until(&c->count, c->count + 1, PATIENCE);
        if (!answer_too) continue;
        post_answer(c, i, "seed");
        pump_until(&c->count, c->count + 1, PATIENCE);
    }
    close_connection(c);
}

/* Open in groups: a burst of thousands would overflow the server's backlog and measure TCP's retries. */
static void open_gently(long i) {
    if (i % 100 == 99) pump_until(&opened, opened + 90, 1);
}

/* ---- fanout: posters answer in one session, every socket of it gets every answer ---- */

static long delivered, posted, taken_posts, sockets;

static void on_delivery(conn *c, const char *payload, size_t length) {
    const char *mark = memmem(payload, length, "\"T=", 3);
    if (!mark) return; /* a ping */
    c->count++;
    delivered++;
    sample(now_ns() - strtoull(mark + 3, NULL, 10));
    if (!nchan && !contains(payload, length, "\"type\":\"message\"")) complain("not a message frame", payload, length);
}

static void on_posted(conn *c, int status, const char *head, size_t head_length, const char *body, size_t length) {
    (void)head, (void)head_length;
    c->count = 0;
    taken_posts++;
    check_kept(status, "\"ok\":true", body, length);
}

static void fan_out_one(conn *poster) {
    poster->count = 1; /* in flight */
    posted++;
    post_answer(poster, 0, "seed");
}

static bool drained(void) { return pump_until(&delivered, posted * sockets, PATIENCE) && pump_until(&taken_posts, posted, PATIENCE); }

static void fanout(void) {
    sockets = option("sockets", 1000);
    int posters = option("posters", 1);
    double seconds = option("seconds", 1), rate = option("rate", 0), window = option("window", 4);
    seed(1, false);
    conn **listeners = calloc(sockets, sizeof *listeners), *by[posters];
    opened = 0;
    for (long i = 0; i < sockets; i++) listeners[i] = listen_to(0, on_delivery, i), open_gently(i);
    /* After the sockets: many servers close an HTTP connection that was not used for five seconds. */
    for (int i = 0; i < posters; i++) by[i] = open_http(on_posted, i);
    pump_until(&opened, sockets + posters, PATIENCE);
    wait_until_quiet();
    fan_out_one(by[0]); /* the first one pays for what is built only once */
    drained();
    wait_until_quiet();
    long before = delivered, posts_before = posted;
    begin();
    while (elapsed() < seconds) {
        /* `window` posts may be on their way: readers keep up, so that no queue's length is measured. */
        for (int i = 0; i < posters; i++)
            if (!by[i]->count && (rate > 0 ? posted - posts_before <= elapsed() * rate : posted * sockets - delivered < window * sockets))
                fan_out_one(by[i]);
        pump(rate > 0 ? 1 : 10);
    }
    drained();
    for (long i = 0; i < sockets; i++)
        if (listeners[i]->count != posted) complain("fan-out", "a socket got more or fewer answers than were posted", 51);
    report(delivered - before);
}

/* ---- roundtrip: a client prompts, its agent polls and answers, the client's socket hears it ---- */

typedef struct {
    conn *client, *agent, *answerer, *socket;
    char prompt_id[64];
    uint64_t began_ns;
    bool accepted, heard, polling;
} pair;

static pair *pairs;
static long trips, ready_to_go;

static void begin_trip(pair *p, int i) {
    if (!(p->accepted && p->heard && p->polling) || !ready_to_go) return;
    p->accepted = p->heard = false;
    p->began_ns = now_ns();
    strcpy(p->prompt_id, new_id().bytes);
    post_prompt(p->client, i, p->prompt_id);
}

static void start_poll(pair *p, int i) {
    p->polling = true;
    poll_prompts(p->agent, i);
}

static void on_prompt_taken(conn *c, int status, const char *head, size_t head_length, const char *body, size_t length) {
    (void)head, (void)head_length;
    check_kept(status, "\"stored\":true", body, length);
    pairs[c->index].accepted = true;
    begin_trip(&pairs[c->index], c->index);
}

static void on_polled(conn *c, int status, const char *head, size_t head_length, const char *body, size_t length) {
    pair *p = &pairs[c->index];
    remember_place(c, head, head_length);
    p->polling = false;
    check(status == 200 && contains(body, length, p->prompt_id), "the poll did not bring the prompt", status, body, length);
    post_answer(p->answerer, c->index, p->prompt_id);
}

static void on_answer_taken(conn *c, int status, const char *head, size_t head_length, const char *body, size_t length) {
    (void)head, (void)head_length;
    check_kept(status, "\"ok\":true", body, length);
    start_poll(&pairs[c->index], c->index);
    begin_trip(&pairs[c->index], c->index);
}

static void on_heard(conn *c, const char *payload, size_t length) {
    pair *p = &pairs[c->index];
    if (!contains(payload, length, "\"T=")) return;
    if (p->heard || !contains(payload, length, p->prompt_id)) complain("not the answer to this prompt", payload, length);
    p->heard = true;
    trips++;
    sample(now_ns() - p->began_ns);
    begin_trip(p, c->index);
}

static void roundtrip(void) {
    int n = option("sessions", 1);
    double seconds = option("seconds", 1);
    pairs = calloc(n, sizeof *pairs);
    seed(n, true);
    opened = 0;
    for (int i = 0; i < n; i++) {
        pairs[i] = (pair){.client = open_http(on_prompt_taken, i), .agent = open_http(on_polled, i),
                          .answerer = open_http(on_answer_taken, i), .socket = listen_to(i, on_heard, i),
                          .accepted = true, .heard = true};
        pump(0);
    }
    pump_until(&opened, 4L * n, PATIENCE);
    for (int i = 0; i < n; i++) start_poll(&pairs[i], i);
    wait_until_quiet();
    ready_to_go = 1;
    for (int i = 0; i < n; i++) begin_trip(&pairs[i], i);
    for (uint64_t end = now_ns() + seconds / 4 * 1e9; now_ns() < end;) pump(10);
    long before = trips;
    begin();
    while (elapsed() < seconds) pump(10);
    report(trips - before);
}

/* ---- herd: all polls of one session wait; one prompt wakes them all ---- */

static long polls_answered, prompts_taken;
static char herd_prompt[64];
static uint64_t prompted_ns;

static void on_woken(conn *c, int status, const char *head, size_t head_length, const char *body, size_t length) {
    remember_place(c, head, head_length);
    polls_answered++;
    sample(now_ns() - prompted_ns);
    check(status == 200 && contains(body, length, herd_prompt), "a poll did not bring the prompt", status, body, length);
}

static void on_herd_post(conn *c, int status, const char *head, size_t head_length, const char *body, size_t length) {
    (void)c, (void)head, (void)head_length;
    prompts_taken++;
    check_kept(status, "", body, length);
}

static void herd(void) {
    long polls = option("polls", 1000), woken = 0;
    double seconds = option("seconds", 1), awake = 0;
    conn **agents = calloc(polls, sizeof *agents);
    seed(1, true);
    opened = 0;
    for (long i = 0; i < polls; i++) agents[i] = open_http(on_woken, i), open_gently(i);
    conn *client = open_http(on_herd_post, 0), *answerer = open_http(on_herd_post, 0);
    pump_until(&opened, polls + 2, PATIENCE);
    for (bool warm = false; awake < seconds; warm = true) {
        if (warm && !began_ns) begin(); /* the first time pays for what is built only once */
        for (long i = 0; i < polls; i++) poll_prompts(agents[i], 0), pump(0);
        wait_until_quiet();
        strcpy(herd_prompt, new_id().bytes);
        prompted_ns = now_ns();
        polls_answered = prompts_taken = 0;
        post_prompt(client, 0, herd_prompt);
        bool all = pump_until(&polls_answered, polls, PATIENCE) && pump_until(&prompts_taken, 1, PATIENCE);
        if (!all) complain("herd", "not every poll was woken", 24);
        if (!nchan) { /* answered, so that the next polls wait again */
            post_answer(answerer, 0, herd_prompt);
            pump_until(&prompts_taken, 2, PATIENCE);
        }
        if (warm) woken += polls_answered;
        if (warm) awake = elapsed();
        if (!all) break;
    }
    report(woken);
}

/* ---- idle: open sockets and keep them; standard input asks how it goes ---- */

#define PROBE_NS 5000000 /* one probe in so long */

static conn *probe; /* asks for the server's health, again and again */
static bool probe_in_flight;
static uint64_t probe_due_ns;

static void on_idle_frame(conn *c, const char *payload, size_t length) { (void)c, (void)payload, (void)length; }

static void on_probe(conn *c, int status, const char *head, size_t head_length, const char *body, size_t length) {
    (void)head, (void)head_length;
    probe_in_flight = false;
    /* While it waited, others were due that would have waited too, each a little less: count them as well, or one
     * stall of a second would be a single sample among hundreds. */
    for (int64_t late = now_ns() - c->sent_ns; late > 0; late -= PROBE_NS) sample(late);
    check(status == 200, "the probe failed", status, body, length);
}

static void tell_idle(void) {
    sort_samples();
    printf("{\"open\":%ld,\"frames\":%ld,\"deflated\":%ld,\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f,\"wrong\":%ld}\n",
           opened, frames, deflated, percentile(0.5), percentile(0.99), percentile(1), wrong);
    fflush(stdout);
}

static void idle(void) {
    long n = option("sockets", 10000), groups = 100;
    seed(groups, false);
    opened = 0;
    for (long i = 0; i < n; i++) listen_to(i % groups, on_idle_frame, i), open_gently(i);
    pump_until(&opened, n, PATIENCE);
    tell_idle();
    begin();
    fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
    /* "tell\n": the counters; "probe\n": the same, and from now on ask for /healthz: how late is it? */
    for (char command[64];;) {
        pump(1);
        if (probe && !probe_in_flight && now_ns() >= probe_due_ns) {
            probe_in_flight = true;
            probe_due_ns = now_ns() + PROBE_NS;
            get(probe, "/healthz", "");
        }
        ssize_t got = read(STDIN_FILENO, command, sizeof command);
        if (got == 0) return;
        if (got < 0) continue;
        if (command[0] == 'p') {
            long others = opened;
            probe = open_http(on_probe, 0);
            pump_until(&opened, others + 1, PATIENCE);
        }
        tell_idle();
    }
}

int main(int count, char **given) {
    struct { const char *name; void (*run)(void); } works[] = {
        {"requests", requests}, {"fanout", fanout}, {"roundtrip", roundtrip}, {"herd", herd}, {"idle", idle}};
    talk_start(given + (count > 1 ? 2 : 1));
    for (size_t i = 0; count > 1 && i < sizeof works / sizeof *works; i++)
        if (!strcmp(given[1], works[i].name)) return works[i].run(), 0;
    fprintf(stderr, "load: requests, fanout, roundtrip, herd or idle? See the top of load.c.\n");
    return 2;
}
