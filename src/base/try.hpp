// Early return on failure, for functions that return a Result.
#pragma once

#include <sidestep/result.hpp>

// Evaluates `expression` (a Result); on failure returns its Error from the enclosing function, else
// declares `name` as its value: SIDESTEP_TRY(auto fd, open_file(path));
#define SIDESTEP_TRY(name, expression) \
    SIDESTEP_TRY_NAMED(name, expression, SIDESTEP_JOIN(sidestep_try_, __LINE__))
#define SIDESTEP_TRY_NAMED(name, expression, temporary) \
    auto temporary = (expression);                      \
    if (!temporary.ok()) return temporary.error();      \
    name = std::move(*temporary)

// The same for a Result<void>, or where the value is not wanted.
#define SIDESTEP_CHECK(expression) \
    if (auto sidestep_check = (expression); !sidestep_check.ok()) return sidestep_check.error()

#define SIDESTEP_JOIN(a, b) SIDESTEP_JOIN_AGAIN(a, b)
#define SIDESTEP_JOIN_AGAIN(a, b) a##b
