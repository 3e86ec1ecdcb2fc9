// The functions that cuFile does not have.
#include <map>
#include <mutex>

#include "shims/cufile/driver.hpp"

using namespace sidestep;
using namespace sidestep::cufile;

namespace {

struct Owned {
    std::mutex mutex;
    std::map<void*, Allocation> memory;
};
Owned& owned() {
    static auto& one = *new Owned;
    return one;
}

}  // namespace

extern "C" {

void* sidestepCufileAllocate(int gpu, size_t bytes) {
    void* address = nullptr;
    answer("sidestepCufileAllocate", [&]() -> Refusal {
        if (auto refused = Driver::get().ensure_machine()) return refused;
        auto made = Driver::get().context()->allocate(Place::gpu(gpu), bytes);
        if (!made) return refusal_of(made.error());
        const std::lock_guard guard(owned().mutex);
        address = made->address();
        owned().memory.insert_or_assign(address, std::move(*made));
        return {};
    });
    return address;
}

void sidestepCufileFree(void* memory) {
    answer("sidestepCufileFree", [&]() -> Refusal {
        Allocation gone;
        const std::lock_guard guard(owned().mutex);
        const auto found = owned().memory.find(memory);
        if (found == owned().memory.end())
            return refusal(CU_FILE_INVALID_VALUE, "this is no memory of sidestepCufileAllocate");
        gone = std::move(found->second);
        owned().memory.erase(found);
        return {};
    });
}

const char* sidestepCufileLastError(void) {
    return last_message();
}
}
