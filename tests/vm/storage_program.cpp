// Copies through the public API that no single command makes, for jobs/nvme_p2p and jobs/storage_faults. Prints one
// JSON object a copy: the receipt, and how the bytes went to or from storage.
//
//   copies BUS-ID SOURCE TARGET   host -> memory -> host, SOURCE -> memory -> TARGET; compares the first pair
//   ranges BUS-ID SOURCE          ranges of SOURCE at odd offsets into memory at odd addresses, compared with pread
//   registered BUS-ID             the errno with which io_uring refuses such memory as a registered buffer, or 0
//   read FILE                     FILE -> host
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <sidestep/sidestep.hpp>

namespace {

using namespace sidestep;

int fail(const Error& error) {
    std::fprintf(stderr, "%s\n", error.to_string().c_str());
    return 1;
}

void print(const char* step, const Receipt& receipt) {
    nlohmann::json json = nlohmann::json::parse(receipt.to_json());
    json["step"] = step;
    json["gpu_direct"] = receipt.storage.gpu_direct;
    json["o_direct"] = receipt.storage.o_direct;
    json["page_cache"] = receipt.storage.page_cache;
    json["text"] = receipt.explain();
    std::puts(json.dump().c_str());
}

int copies(const Context& context, const Place& place, const std::string& source, const std::string& target) {
    constexpr Bytes size = 4_MiB;
    auto memory = context.allocate(place, size);
    if (!memory) return fail(memory.error());
    std::vector<char> there(size);
    std::vector<char> back(size);
    for (Bytes i = 0; i < size; ++i) there[i] = static_cast<char>((i * 2654435761u) >> 13);
    struct Step {
        const char* name;
        Buffer from;
        Buffer to;
    };
    const Step steps[] = {{"host_to_memory", Buffer::host(there.data(), size), memory->buffer()},
                          {"memory_to_host", memory->buffer(), Buffer::host(back.data(), size)},
                          {"file_to_memory", Buffer::file(source, 0, size), memory->buffer()},
                          {"memory_to_file", memory->buffer(), Buffer::file(target)}};
    for (const Step& step : steps) {
        auto receipt = context.copy(step.from, step.to).wait();
        if (!receipt) return fail(receipt.error());
        print(step.name, *receipt);
    }
    if (there == back) return 0;
    std::fprintf(stderr, "what went to the memory and back has changed\n");
    return 1;
}

int ranges(const Context& context, const Place& place, const std::string& source) {
    auto memory = context.allocate(place, 1_MiB);
    if (!memory) return fail(memory.error());
    const int fd = ::open(source.c_str(), O_RDONLY | O_CLOEXEC);
    const struct {
        Bytes offset, size, at;
    } cases[] = {{0, 1, 0},          {100, 300'000, 100}, {4096, 65'536, 0},
                 {4100, 200'000, 4}, {12'345, 99'999, 7}, {513, 3000, 0}};
    Bytes direct = 0;
    Bytes cached = 0;
    for (const auto& [offset, size, at] : cases) {
        auto receipt =
            context.copy(Buffer::file(source, offset, size), memory->buffer().slice(at, size)).wait();
        if (!receipt) return fail(receipt.error());
        direct += receipt->storage.gpu_direct;
        cached += receipt->storage.page_cache;
        std::vector<char> want(size);
        std::vector<char> got(size);
        if (::pread(fd, want.data(), size, static_cast<off_t>(offset)) != static_cast<ssize_t>(size))
            return 1;
        auto read = context.copy(memory->buffer().slice(at, size), Buffer::host(got.data(), size)).wait();
        if (!read) return fail(read.error());
        if (want != got) {
            std::fprintf(stderr, "%llu bytes at %llu are wrong\n", static_cast<unsigned long long>(size),
                         static_cast<unsigned long long>(offset));
            return 1;
        }
    }
    ::close(fd);
    std::puts(nlohmann::json{{"gpu_direct", direct}, {"page_cache", cached}}.dump().c_str());
    return 0;
}

int registered(const Context& context, const Place& place) {
    auto memory = context.allocate(place, 64_KiB);
    if (!memory) return fail(memory.error());
    io_uring_params parameters{};
    const long ring = ::syscall(SYS_io_uring_setup, 4, &parameters);
    if (ring < 0) return fail({ErrorCode::io_error, std::strerror(errno), "io_uring_setup", {}});
    const iovec piece{memory->address(), memory->size()};
    const long rc = ::syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &piece, 1);
    std::printf("%d\n", rc == 0 ? 0 : errno);
    ::close(static_cast<int>(ring));
    return 0;
}

int read(const Context& context, const std::string& path) {
    const auto size = std::filesystem::file_size(path);
    auto memory = context.allocate(Place::host(), size);
    if (!memory) return fail(memory.error());
    auto receipt = context.copy(Buffer::file(path), memory->buffer()).wait();
    if (!receipt) return fail(receipt.error());
    print("read", *receipt);
    return 0;
}

}  // namespace

int main(int count, char** words) {
    const std::string verb = count > 2 ? words[1] : "";
    const std::string name = count > 2 ? words[2] : "";
    auto context = Context::open();
    if (!context) return fail(context.error());
    if (verb == "copies" && count == 5) return copies(*context, Place::p2pmem(name), words[3], words[4]);
    if (verb == "ranges" && count == 4) return ranges(*context, Place::p2pmem(name), words[3]);
    if (verb == "registered") return registered(*context, Place::p2pmem(name));
    if (verb == "read") return read(*context, name);
    std::fprintf(stderr, "usage: storage_program copies|ranges|registered|read ...\n");
    return 2;
}
