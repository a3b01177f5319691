// What lies between these two calls is counted, by tools that look for their names.

#ifndef KVXFER_BENCHMARKS_SEND_PATH_MARKS_H_
#define KVXFER_BENCHMARKS_SEND_PATH_MARKS_H_

extern "C" {
__attribute__((noinline)) inline void kvxfer_count_from() { asm volatile(""); }
__attribute__((noinline)) inline void kvxfer_count_to() { asm volatile(""); }
}

#endif  // KVXFER_BENCHMARKS_SEND_PATH_MARKS_H_
