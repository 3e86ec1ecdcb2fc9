/* What holds in the tests of the C interface: each condition that does not is a line on standard error. */
#ifndef SIDESTEP_TESTS_CAPI_CHECK_H
#define SIDESTEP_TESTS_CAPI_CHECK_H

#include <sidestep/sidestep.h>
#include <stdio.h>

static int failures = 0;

static void check(int holds, const char* what, int line) {
    if (holds) return;
    const sidestep_error* error = sidestep_last_error();
    fprintf(stderr, "line %d: %s; last error %d: %s (%s)\n", line, what, (int)error->code, error->message,
            error->where);
    ++failures;
}
#define CHECK(condition) check((condition), #condition, __LINE__)

#endif
