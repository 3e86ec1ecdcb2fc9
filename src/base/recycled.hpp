// Memory of objects that are made again and again.
#pragma once

#include <cstddef>
#include <new>
#include <utility>

namespace sidestep::base {

// For std::allocate_shared. A thread keeps the memory of one object that ended on it for the next one it makes: glibc has blocks
// of at most 1,032 bytes at hand, and to find a larger one takes a sixth of what submitting a small copy takes. Under a
// sanitizer nothing is kept, so that it sees who uses an object after its end.
template <typename T>
class Recycled {
public:
    using value_type = T;

    Recycled() = default;
    template <typename Other>
    explicit(false) Recycled(const Recycled<Other>&) {}

    T* allocate(std::size_t count) {
        void* const kept = count == 1 ? std::exchange(spare().memory, nullptr) : nullptr;
        return static_cast<T*>(kept != nullptr ? kept : ::operator new(count * sizeof(T)));
    }
    void deallocate(T* memory, std::size_t count) {
        ::operator delete(count == 1 && keeps ? std::exchange(spare().memory, memory) : memory);
    }
    bool operator==(const Recycled&) const = default;

private:
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    static constexpr bool keeps = false;
#else
    static constexpr bool keeps = true;
#endif
    struct Spare {
        void* memory = nullptr;
        ~Spare() { ::operator delete(std::exchange(memory, nullptr)); }
    };
    static Spare& spare() {
        thread_local Spare one;
        return one;
    }
};

}  // namespace sidestep::base
