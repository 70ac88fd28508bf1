/* SPDX-License-Identifier: MIT
 *
 * A sample of a path: the control thread reads the streams of its connections every few milliseconds, fits their send
 * buffers, and hands what they tell to the scaler. Under the engine's lock.
 */
#ifndef BNET_PATH_SAMPLE_H
#define BNET_PATH_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "scaling/path.h"

/* It begins, if the last one is a round trip ago; … */
bool bnet_path_begin_sample(struct bnet_path *path, uint64_t now_us);
/* … streams of connections that have moved are read; was_idle: this one was idle when it was last due to be read; … */
void bnet_path_sample_conn(struct bnet_conn *conn, uint64_t now_us, bool was_idle);
/* … and the path is judged by it. */
void bnet_path_judge(struct bnet_path *path, uint64_t now_us);
/* A question of a path has been answered. */
void bnet_path_answered(const struct bnet_answer *answer);

#endif
