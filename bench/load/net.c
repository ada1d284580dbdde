#define _GNU_SOURCE
#include "net.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define COMPLAINTS 3
#define SCRATCH (4 << 20) /* the largest answer: a poll that fetches many prompts */

long opened, frames, deflated, wrong;

static int epoll_fd;
static struct sockaddr_in server;
static char common_headers[1024]; /* Host and Authorization */
static bool deflate;
static char scratch[SCRATCH];

static void parse(conn *c, size_t length, size_t *used);

void net_start(int port, const char *token, bool offer_deflate) {
    epoll_fd = epoll_create1(0);
    server = (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int length = snprintf(common_headers, sizeof common_headers, "Host: 127.0.0.1:%d\r\n", port);
    if (token[0]) snprintf(common_headers + length, sizeof common_headers - length, "Authorization: Bearer %s\r\n", token);
    deflate = offer_deflate;
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

void complain(const char *what, const char *text, size_t length) {
    if (wrong++ < COMPLAINTS) fprintf(stderr, "%s: %.*s\n", what, (int)(length < 200 ? length : 200), text);
}

uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

double own_cpu_seconds(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return r.ru_utime.tv_sec + r.ru_stime.tv_sec + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

/* schedstat counts nanoseconds; /proc/PID/stat counts ticks of 10 ms, too coarse for a run of one second. */
double cpu_seconds(const char *pids) {
    double total = 0;
    for (char *end; *pids; pids = *end == ',' ? end + 1 : end) {
        char path[512];
        snprintf(path, sizeof path, "/proc/%ld/task", strtol(pids, &end, 10));
        if (end == pids) break;
        DIR *tasks = opendir(path);
        if (!tasks) continue;
        for (struct dirent *task; (task = readdir(tasks));) {
            char file[1024];
            snprintf(file, sizeof file, "%s/%s/schedstat", path, task->d_name);
            FILE *f = task->d_name[0] == '.' ? NULL : fopen(file, "r");
            unsigned long long ns = 0;
            if (f && fscanf(f, "%llu", &ns) == 1) total += ns / 1e9;
            if (f) fclose(f);
        }
        closedir(tasks);
    }
    return total;
}

/* ---- connections ---- */

static void watch(conn *c, int operation, bool writable) {
    struct epoll_event e = {.events = EPOLLIN | (writable ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll_fd, operation, c->fd, &e);
}

static void drop(conn *c, const char *why) {
    if (c->state == DEAD) return;
    complain("connection lost", why, strlen(why));
    close_connection(c);
}

void close_connection(conn *c) {
    c->state = DEAD;
    close(c->fd);
}

static conn *open_connection(int index) {
    conn *c = calloc(1, sizeof *c);
    c->index = index;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (c->fd < 0) {
        perror("socket");
        exit(1);
    }
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    /* Reset instead of TIME_WAIT: else the ports of 127.0.0.1 run out after a few works. */
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
    if (connect(c->fd, (struct sockaddr *)&server, sizeof server) < 0 && errno != EINPROGRESS) {
        perror("connect");
        exit(1);
    }
    watch(c, EPOLL_CTL_ADD, true);
    return c;
}

conn *open_http(answer_fn *on_answer, int index) {
    conn *c = open_connection(index);
    c->on_answer = on_answer;
    return c;
}

conn *open_ws(const char *path, frame_fn *on_frame, int index) {
    conn *c = open_connection(index);
    c->on_frame = on_frame;
    c->path = path;
    return c;
}

static void flush(conn *c) {
    size_t sent = 0;
    while (sent < c->out_length) {
        ssize_t n = send(c->fd, c->out + sent, c->out_length - sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) return drop(c, strerror(errno));
        sent += n;
    }
    memmove(c->out, c->out + sent, c->out_length -= sent);
    watch(c, EPOLL_CTL_MOD, c->out_length > 0);
}

static void send_bytes(conn *c, const char *bytes, size_t length) {
    if (c->state == DEAD) return;
    ssize_t n = c->out_length ? 0 : send(c->fd, bytes, length, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) return drop(c, strerror(errno));
    if (n < 0) n = 0;
    if ((size_t)n == length) return;
    c->out = realloc(c->out, c->out_length + length - n);
    memcpy(c->out + c->out_length, bytes + n, length - n);
    c->out_length += length - n;
    watch(c, EPOLL_CTL_MOD, true);
}

void get(conn *c, const char *path, const char *more_headers) {
    char request[2048];
    int n = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\n%s%s\r\n", path, common_headers, more_headers);
    c->sent_ns = now_ns();
    send_bytes(c, request, n);
}

void post(conn *c, const char *path, const char *body, size_t length) {
    char request[4096];
    int n = snprintf(request, sizeof request - length,
                     "POST %s HTTP/1.1\r\n%sContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", path,
                     common_headers, length);
    memcpy(request + n, body, length);
    c->sent_ns = now_ns();
    send_bytes(c, request, n + length);
}

static void shake_hands(conn *c) {
    char more[512];
    snprintf(more, sizeof more,
             "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
             "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n%s",
             deflate ? "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n" : "");
    c->state = SHAKING;
    get(c, c->path, more);
}

static void on_connected(conn *c) {
    int error = 0;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){sizeof error});
    if (error) return drop(c, strerror(error));
    watch(c, EPOLL_CTL_MOD, false);
    if (c->path) return shake_hands(c);
    c->state = OPEN;
    opened++;
}

/* All connections share one buffer; each keeps only what is left of an answer that has not come in full. */
static void on_readable(conn *c) {
    for (bool more = true; more && c->state != DEAD;) {
        memcpy(scratch, c->left, c->left_length);
        size_t room = SCRATCH - 1 - c->left_length;
        ssize_t n = recv(c->fd, scratch + c->left_length, room, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n <= 0) return drop(c, n ? strerror(errno) : "closed by the server");
        more = (size_t)n == room;
        size_t length = c->left_length + n, used = 0;
        parse(c, length, &used);
        c->left_length = length - used;
        if (c->left_length) {
            c->left = realloc(c->left, c->left_length);
            memcpy(c->left, scratch + used, c->left_length);
        }
    }
}

void pump(int milliseconds) {
    static struct epoll_event events[1024];
    int n = epoll_wait(epoll_fd, events, 1024, milliseconds);
    for (int i = 0; i < n; i++) {
        conn *c = events[i].data.ptr;
        if (c->state == CONNECTING) on_connected(c);
        else if (c->state != DEAD && events[i].events & EPOLLOUT) flush(c);
        if (c->state != DEAD && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) on_readable(c);
    }
}

bool pump_until(const long *value, long target, double seconds) {
    for (uint64_t end = now_ns() + seconds * 1e9; *value < target && now_ns() < end;) pump(20);
    return *value >= target;
}

/* ---- what comes in ---- */

bool contains(const char *text, size_t length, const char *what) { return memmem(text, length, what, strlen(what)); }

const char *header(const char *head, size_t head_length, const char *name, size_t *length) {
    size_t n = strlen(name);
    for (const char *line = head, *end = head + head_length; (line = memchr(line, '\n', end - line));) {
        line++;
        if ((size_t)(end - line) <= n || strncasecmp(line, name, n) || line[n] != ':') continue;
        for (line += n + 1; *line == ' ';) line++;
        *length = (const char *)memchr(line, '\r', end - line) - line;
        return line;
    }
    return NULL;
}

static size_t parse_handshake(conn *c, size_t length) {
    char *end = memmem(scratch, length, "\r\n\r\n", 4);
    if (!end) return 0;
    size_t head = end + 4 - scratch;
    if (memcmp(scratch, "HTTP/1.1 101", 12)) {
        drop(c, "handshake refused");
        complain("handshake", scratch, length);
        return length;
    }
    size_t ignored;
    if (header(scratch, head, "Sec-WebSocket-Extensions", &ignored)) deflated++;
    c->state = OPEN;
    opened++;
    return head;
}

static void answer_ping(conn *c, const char *payload, size_t length) {
    char pong[6 + 125] = {(char)0x8a, (char)(0x80 | length)}; /* masked with zeros: the payload stays as it is */
    memcpy(pong + 6, payload, length);
    send_bytes(c, pong, 6 + length);
}

/* The length of one frame at the beginning of `bytes`, 0 if it is not all there; no client needs fragments here. */
static size_t parse_frame(conn *c, const unsigned char *bytes, size_t length) {
    if (length < 2) return 0;
    size_t head = 2, payload = bytes[1] & 127;
    if (payload == 126) head = 4;
    if (payload == 127) head = 10;
    if (length < head) return 0;
    if (head > 2) payload = 0;
    for (size_t k = 2; k < head; k++) payload = payload << 8 | bytes[k];
    if (length < head + payload) return 0;
    const char *data = (const char *)bytes + head;
    int opcode = bytes[0] & 15;
    frames++;
    if (opcode == 8) drop(c, "close frame");
    else if (opcode == 9) answer_ping(c, data, payload);
    else if (opcode == 1) c->on_frame(c, data, payload);
    return head + payload;
}

static size_t parse_answer(conn *c, char *bytes, size_t length) {
    char *end = memmem(bytes, length, "\r\n\r\n", 4);
    if (!end) return 0;
    size_t head = end + 4 - bytes, ignored;
    const char *told = header(bytes, head, "Content-Length", &ignored);
    size_t body = told ? strtoul(told, NULL, 10) : 0;
    if (length < head + body) return 0;
    c->on_answer(c, atoi(bytes + 9), bytes, head, bytes + head, body);
    return head + body;
}

static void parse(conn *c, size_t length, size_t *used) {
    scratch[length] = 0;
    for (size_t n = 1; n && *used < length && c->state != DEAD; *used += n) {
        if (c->state == SHAKING) n = parse_handshake(c, length);
        else if (c->on_frame) n = parse_frame(c, (unsigned char *)scratch + *used, length - *used);
        else n = parse_answer(c, scratch + *used, length - *used);
    }
}
