// Copies between two GPUs and prints how the bytes went. Runs anywhere: the eight GPUs are emulated in
// host memory unless the first argument names another machine ("live" is this one).
#include <cstdio>

#include <sidestep/sidestep.hpp>

using namespace sidestep;

namespace {

Result<Receipt> copy_between_gpus(const std::string& machine) {
    auto context = Context::open({machine});
    if (!context) return context.error();
    auto from = context->allocate(Place::gpu(0), 64_MiB);
    if (!from) return from.error();
    auto to = context->allocate(Place::gpu(1), 64_MiB);
    if (!to) return to.error();

    // Ask first, if you like; nothing moves.
    auto route = context->route(from->buffer(), to->buffer());
    if (!route) return route.error();
    std::printf("%s\n", route->to_string().c_str());

    CopyOptions options;
    options.verify = true;
    return context->copy(from->buffer(), to->buffer(), options).wait();
}

}  // namespace

int main(int argc, char** argv) {
    const auto receipt = copy_between_gpus(argc > 1 ? argv[1] : "dgx-h100");
    if (!receipt) {
        std::fprintf(stderr, "%s\n", receipt.error().to_string().c_str());
        return 1;
    }
    std::printf("%s", receipt->explain().c_str());
    return 0;
}
