// What the suite does while calls go wrong: each thing once, on files and emulated GPUs of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <sidestep/sidestep.hpp>

namespace sidestep::failure {

// Files and memory that one activity begins with, and what has to be there when it is over.
class Work {
public:
    explicit Work(const Context& context);
    virtual ~Work();
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

    // Files, memory and what was in the target before.
    virtual void prepare() {}
    // From the first call of the library to the result. Zero: no deadline.
    virtual Result<void> run(std::chrono::milliseconds deadline) = 0;
    // Of a run that says that it is done: empty, or what is wrong with the bytes.
    virtual std::string wrong_bytes() = 0;
    // Of one that failed: empty, or what it has left that it should not have.
    virtual std::string left_over() { return {}; }

    // The result is there; run() goes on to drop what it has, which waits for pieces in flight.
    bool told() const { return told_.load(); }
    // It is in a call that keeps no deadline: see Kind::holds_up.
    bool held_up() const { return held_up_.load(); }
    // Descriptors that the library keeps for the next time, or not, as it comes.
    virtual std::size_t kept_descriptors() const { return 0; }
    // An error tells by one of these what it is about, if not by the call.
    virtual std::vector<std::string> words() const { return {folder_, "gpu:", "host", "thread"}; }

protected:
    std::string at(const std::string& name) const { return folder_ + "/" + name; }
    // Names in the folder, in order.
    std::vector<std::string> names() const;
    std::string content_of(const Buffer& memory) const;
    Allocation filled(const Place& place, const std::string& with) const;
    // One of those there are.
    Place gpu(unsigned number) const;

    Result<void> result_of(Transfer transfer);

    const Context& context_;
    std::atomic<bool> told_{false};
    std::atomic<bool> held_up_{false};

private:
    std::string folder_;
};

struct Kind {
    const char* name;
    std::unique_ptr<Work> (*make)(const Context& context);
    const char* holds_up = "";  // why a call of it may hang as long as what it calls
    bool asks_files_or_others = true;
};
inline void PrintTo(const Kind& kind, std::ostream* out) {
    *out << kind.name;
}
const std::vector<Kind>& kinds();
// On a caller's stream; of them there are none on emulated GPUs.
const std::vector<Kind>& kinds_on_stream();

}  // namespace sidestep::failure
