// Loads a file into GPU memory, copying while the program does something else, and writes it back to
// another file. Takes the GPUs of this machine, or emulated ones where it has none.
//
//     02_file_to_gpu FILE COPY
#include <chrono>
#include <cstdio>
#include <filesystem>

#include <sidestep/sidestep.hpp>

using namespace sidestep;

namespace {

// This machine if a GPU is there, else a modelled one.
Result<Context> open_some_gpus() {
    auto live = Context::open({"live"});
    if (live && live->topology().gpu_count() > 0) return live;
    std::puts("no GPU here, so the GPUs of a dgx-h100 are emulated");
    return Context::open({"dgx-h100"});
}

Result<void> load_and_save(const std::string& path, const std::string& copy) {
    std::error_code failed;
    const Bytes size = std::filesystem::file_size(path, failed);
    if (failed) return Error{ErrorCode::not_found, path + ": " + failed.message(), {}, {}};

    auto context = open_some_gpus();
    if (!context) return context.error();
    auto memory = context->allocate(Place::gpu(0), size);
    if (!memory) return memory.error();

    // The copy runs by itself; looking at it is optional.
    Transfer transfer = context->copy(Buffer::file(path), memory->buffer());
    auto loaded = transfer.wait_for(std::chrono::milliseconds(10));
    while (!loaded) {
        std::printf("%s of %s\n", format_bytes(transfer.bytes_done()).c_str(), format_bytes(size).c_str());
        loaded = transfer.wait_for(std::chrono::milliseconds(100));
    }
    if (!*loaded) return loaded->error();
    std::printf("loaded: %s\n", (*loaded)->summary().c_str());

    // COPY appears under its name when it is complete, never before.
    auto saved = context->copy(memory->buffer(), Buffer::file(copy)).wait();
    if (!saved) return saved.error();
    std::printf("saved:  %s\n", saved->summary().c_str());
    return {};
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: %s FILE COPY\n", argv[0]);
        return 2;
    }
    if (const auto done = load_and_save(argv[1], argv[2]); !done) {
        std::fprintf(stderr, "%s\n", done.error().to_string().c_str());
        return 1;
    }
    return 0;
}
