// Uses most of what the C++ interface offers, so that a symbol the library forgot to show fails to link.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <sidestep/cuda.hpp>
#include <sidestep/sidestep.hpp>

using namespace sidestep;

namespace {

Result<void> copy_there_and_back() {
    auto context = Context::open({"dgx-h100"});
    if (!context) return context.error();
    const auto place = Place::parse("gpu:5");
    if (!place) return place.error();
    const auto bytes = parse_bytes("1MiB");
    if (!bytes) return bytes.error();
    auto gpu = context->allocate(*place, *bytes);
    if (!gpu) return gpu.error();

    const std::vector<char> sent(*bytes, 'x');
    std::vector<char> received(*bytes, ' ');
    CopyOptions options;
    options.verify = true;
    auto there = context->copy(Buffer::host(sent.data(), *bytes), gpu->buffer(), options).wait();
    if (!there) return there.error();
    auto back = context->copy(gpu->buffer(), Buffer::host(received.data(), *bytes), options).wait();
    if (!back) return back.error();
    if (std::memcmp(sent.data(), received.data(), *bytes) != 0)
        return Error{ErrorCode::mismatch, "other bytes came back", gpu->buffer().to_string(), {}};

    const auto route = context->route(Place::gpu(0), *place, *bytes);
    if (!route) return route.error();
    std::printf("%s\n%s", back->summary().c_str(), route->to_string().c_str());
    std::printf("%s %s %s\n", format_bytes(*bytes).c_str(), format_rate(back->gb_per_s()).c_str(),
                format_seconds(back->seconds).c_str());
    std::printf("%zu backends, %s\n", context->backends().size(), to_string(ErrorCode::mismatch));
    return {};
}

}  // namespace

int main() {
    std::printf("sidestep %s\n", version());
    const auto done = copy_there_and_back();
    if (!done) std::fprintf(stderr, "%s\n", done.error().to_string().c_str());
    return done ? 0 : 1;
}
