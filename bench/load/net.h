/* net: many HTTP and WebSocket connections to 127.0.0.1 in one thread, and what it costs the server.
 *
 * Knows how to talk, not what about: the works in load.c say what is sent and what a right answer is.
 */
#ifndef NET_H
#define NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct conn conn;

/* An answer with its head and body, or a frame with its payload: valid only during the call. */
typedef void answer_fn(conn *c, int status, const char *head, size_t head_length, const char *body, size_t length);
typedef void frame_fn(conn *c, const char *payload, size_t length);

struct conn {
    int fd;
    int index;                  /* the work's own: which session, pair or poster */
    long count;                 /* the work's own: frames or answers so far */
    uint64_t sent_ns;           /* the work's own: when the last request left */
    char etag[64], modified[64]; /* where a reader of nchan stands */
    answer_fn *on_answer;       /* HTTP */
    frame_fn *on_frame;         /* WebSocket */
    /* what follows belongs to net.c */
    const char *path;
    enum { CONNECTING, SHAKING, OPEN, DEAD } state;
    char *left, *out;           /* bytes of an unfinished answer; bytes the kernel did not take yet */
    size_t left_length, out_length;
};

extern long opened;   /* connections that are ready to be used */
extern long frames;   /* frames received in all, protocol pings too */
extern long deflated; /* handshakes in which the server agreed to compress */
extern long wrong;    /* everything that was not as it should be */

void net_start(int port, const char *token, bool offer_deflate);
conn *open_http(answer_fn *on_answer, int index);
conn *open_ws(const char *path, frame_fn *on_frame, int index); /* `path` must outlive the handshake */

void close_connection(conn *c);

void get(conn *c, const char *path, const char *more_headers); /* `more_headers`: whole lines, or "" */
void post(conn *c, const char *path, const char *body, size_t length);

void pump(int milliseconds); /* handle what comes in, for so long at most if nothing does */
bool pump_until(const long *value, long target, double seconds);

/* Say what went wrong (the first few times) and count it. */
void complain(const char *what, const char *text, size_t length);

uint64_t now_ns(void);
double own_cpu_seconds(void);
double cpu_seconds(const char *pids); /* of these processes, "12,34", with all their threads */
const char *header(const char *head, size_t head_length, const char *name, size_t *length);
bool contains(const char *text, size_t length, const char *what);

#endif
