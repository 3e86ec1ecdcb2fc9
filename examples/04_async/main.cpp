// A coroutine that copies a block to a GPU and on to another, and a batch of a thousand small copies that
// runs meanwhile. Runs anywhere: the eight GPUs are emulated in host memory unless the first argument names
// another machine ("live" is this one).
#include <coroutine>
#include <cstdio>
#include <exception>
#include <future>
#include <vector>

#include <sidestep/sidestep.hpp>

using namespace sidestep;

namespace {

// The least a coroutine needs: it starts at once and frees itself at its end. Programs have a type of their
// own (asio::awaitable, folly::coro::Task), which works as well.
struct Task {
    struct promise_type {
        Task get_return_object() { return {}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { std::terminate(); }
    };
};

Task over_two_gpus(const Context& context, const Buffer& from, const Buffer& first, const Buffer& second,
                   std::promise<Result<Receipt>>& outcome) {
    auto there = co_await context.copy(from, first);
    if (!there) {
        outcome.set_value(there.error());
        co_return;
    }
    outcome.set_value(co_await context.copy(first, second));
}

std::vector<BatchItem> blocks(const Buffer& from, const Buffer& to, Bytes size) {
    std::vector<BatchItem> items;
    for (Bytes at = 0; at + size <= from.size(); at += size)
        items.push_back({from.slice(at, size), to.slice(at, size)});
    return items;
}

Result<void> run(const std::string& machine) {
    auto context = Context::open({machine});
    if (!context) return context.error();
    std::vector<Allocation> memory;
    for (const Place& place : {Place::host(), Place::gpu(0), Place::gpu(1), Place::gpu(0), Place::gpu(1)}) {
        auto block = context->allocate(place, 4_MiB);
        if (!block) return block.error();
        memory.push_back(std::move(*block));
    }

    std::promise<Result<Receipt>> outcome;
    over_two_gpus(*context, memory[0].buffer(), memory[1].buffer(), memory[2].buffer(), outcome);
    auto batch = context->copy_batch(blocks(memory[3].buffer(), memory[4].buffer(), 4_KiB)).wait();
    auto last = outcome.get_future().get();
    if (!batch) return batch.error();
    if (!last) return last.error();
    std::printf("coroutine: %s\nbatch: %s\n", last->summary().c_str(), batch->summary().c_str());
    return {};
}

}  // namespace

int main(int argc, char** argv) {
    const auto done = run(argc > 1 ? argv[1] : "dgx-h100");
    if (done) return 0;
    std::fprintf(stderr, "%s\n", done.error().to_string().c_str());
    return 1;
}
