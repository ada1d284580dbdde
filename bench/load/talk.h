/* talk: what clients and agents say, to a relay or to nchan, and what a work cost once it is done. */
#ifndef TALK_H
#define TALK_H

#include "net.h"

#define PAGE 100 /* messages in a page of history */

typedef struct { char bytes[128]; } line;

extern bool nchan;         /* else the specification's protocol */
extern uint64_t began_ns;  /* 0 until begin() */

void talk_start(char **arguments); /* name=value, as the top of load.c tells */
const char *text_option(const char *name, const char *otherwise);
double option(const char *name, double otherwise);

line new_id(void);
void post_prompt(conn *c, long session, const char *id);
void post_answer(conn *c, long session, const char *prompt_id);
void get_page(conn *c, long session, long offset);
void poll_prompts(conn *c, long session);
conn *listen_to(long session, frame_fn *on_frame, int index);
void remember_place(conn *c, const char *head, size_t head_length); /* nchan's polls say where they stand */

void check(bool right, const char *what, int status, const char *body, size_t length);
void check_kept(int status, const char *expected, const char *body, size_t length);

void begin(void);
double elapsed(void);              /* seconds since begin() */
void sample(uint64_t nanoseconds); /* one latency; ignored before begin() */
void sort_samples(void);
double percentile(double p);       /* microseconds, of sorted samples */
void report(long operations);      /* the line of JSON */
void wait_until_quiet(void);       /* until the server has done all it had to do */

#endif
