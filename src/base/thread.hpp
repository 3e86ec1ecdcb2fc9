// Threads that may not be had: limits of the user or the control group are no reason to end the program.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include <sidestep/result.hpp>

namespace sidestep::base {

// ErrorCode::out_of_memory, with what to do about it, where the system gives no thread. `where`: of the error.
Result<std::thread> start_thread(std::function<void()> work, std::string where);

// The calling thread's: 0 for the first that asks, and so on. None is given twice.
unsigned thread_number();

}  // namespace sidestep::base
