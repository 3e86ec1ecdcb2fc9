// cufile-calls: reads of one size from a warm file into GPU memory, by any number of threads, through any library that has
// cuFile's interface, through the engine itself, and as a plain program does it, in turns.
//
//   cufile-calls --file /data/x --size 16MiB --threads 8 --way build/release/shims/cufile/libcufile.so.0 --way engine --way pread
//
// A way is the path of a library, `engine` (Context::copy of a file's range) or `pread` (pread into page-locked memory, then
// cuMemcpyHtoDAsync and cuStreamSynchronize: what KvikIO does where it has no cuFile). `batch:` before a library's path is one thread
// that submits 128 reads (--batch) at a time and collects them, whatever --threads says. With SIDESTEP_MACHINE naming an emulated
// machine the memory is that of an emulated GPU, for a trial without one; there is no `pread` then.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <sidestep/context.hpp>

#include "base/median.hpp"

namespace {

using namespace sidestep;
using Clock = std::chrono::steady_clock;

struct Wanted {
    std::string file;
    std::string size_text = "16MiB";
    Bytes size = 0;
    int threads = 1;
    int batch = 128;
    int gpu = 0;
    double seconds = 1;
    int rounds = 7;
    bool random = false;      // offsets by chance, multiples of 4 KiB
    bool registered = false;  // memory that the library was told of
    std::vector<std::string> ways;
};

[[noreturn]] void give_up(const std::string& words) {
    std::fprintf(stderr, "cufile-calls: %s\n", words.c_str());
    std::exit(1);
}

template <typename Function>
void bind(void* library, Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    if (function == nullptr) give_up(fmt::format("there is no {}", name));
}

// Of cuda.h, where a CUdevice and a CUresult are ints and a CUdeviceptr is an unsigned long long.
struct Cuda {
    int (*init)(unsigned) = nullptr;
    int (*retain)(void**, int) = nullptr;
    int (*set_current)(void*) = nullptr;
    int (*allocate)(unsigned long long*, std::size_t) = nullptr;
    int (*allocate_host)(void**, std::size_t, unsigned) = nullptr;
    int (*create_stream)(void**, unsigned) = nullptr;
    int (*copy)(unsigned long long, const void*, std::size_t, void*) = nullptr;
    int (*synchronize)(void*) = nullptr;
    void* context = nullptr;

    bool load(int gpu) {
        void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
        if (library == nullptr) return false;
        bind(library, init, "cuInit");
        bind(library, retain, "cuDevicePrimaryCtxRetain");
        bind(library, set_current, "cuCtxSetCurrent");
        bind(library, allocate, "cuMemAlloc_v2");
        bind(library, allocate_host, "cuMemHostAlloc");
        bind(library, create_stream, "cuStreamCreate");
        bind(library, copy, "cuMemcpyHtoDAsync_v2");
        bind(library, synchronize, "cuStreamSynchronize");
        return init(0) == 0 && retain(&context, gpu) == 0;
    }
};

// As cuFile declares them.
struct Status {
    int code, cuda;
};
struct Description {
    int type = 1;
    union {
        int fd;
        void* handle;
    } file = {-1};
    const void* operations = nullptr;
};

// What one thread reads with, made on that thread.
using Reader = std::function<ssize_t(Bytes offset)>;
struct Way {
    std::string name;
    std::function<Reader()> start;
    std::vector<double> calls_a_second;
    int threads = 1;
    int reads = 1;  // in a call of a reader, one behind the other in the file
};

// An entry of a batch, and its end.
struct Entry {
    int mode = 1;
    void* base = nullptr;
    off_t offset = 0;
    off_t base_offset = 0;
    std::size_t size = 0;
    void* file = nullptr;
    int opcode = 0;
    void* cookie = nullptr;
};
static_assert(sizeof(Entry) == 64);
struct Ended {
    void* cookie;
    int status;
    std::size_t result;
};

void* gpu_memory(const Wanted& wanted, const Cuda& cuda, const Context& context, Bytes times = 1) {
    if (cuda.context != nullptr) {
        unsigned long long address = 0;
        if (cuda.set_current(cuda.context) != 0 || cuda.allocate(&address, wanted.size * times) != 0)
            give_up("the GPU has no memory");
        return reinterpret_cast<void*>(address);
    }
    auto made = context.allocate(Place::gpu(wanted.gpu), wanted.size * times);
    if (!made) give_up(made.error().to_string());
    return (new Allocation(std::move(*made)))->address();
}

// The file, opened through the library.
void* open_in(void* library, const Wanted& wanted, const Cuda& cuda, const std::string& path) {
    Status (*open)() = nullptr;
    Status (*add_file)(void**, Description*) = nullptr;
    bind(library, open, "cuFileDriverOpen");
    bind(library, add_file, "cuFileHandleRegister");
    if (cuda.context != nullptr) cuda.set_current(cuda.context);
    if (const Status opened = open(); opened.code != 0)
        give_up(fmt::format("{}: cuFileDriverOpen answers {}", path, opened.code));
    Description description;
    description.file.fd = ::open(wanted.file.c_str(), O_RDONLY | O_CLOEXEC);
    void* file = nullptr;
    if (const Status added = add_file(&file, &description); added.code != 0)
        give_up(fmt::format("{}: cuFileHandleRegister answers {}", path, added.code));
    return file;
}

void* load_library(const std::string& path) {
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) give_up(::dlerror());
    return library;
}

Way batch_way(const Wanted& wanted, const Cuda& cuda, const Context& context, const std::string& path) {
    void* library = load_library(path);
    void* const file = open_in(library, wanted, cuda, path);
    Status (*set_up)(void**, unsigned) = nullptr;
    Status (*submit)(void*, unsigned, Entry*, unsigned) = nullptr;
    Status (*collect)(void*, unsigned, unsigned*, Ended*, timespec*) = nullptr;
    bind(library, set_up, "cuFileBatchIOSetUp");
    bind(library, submit, "cuFileBatchIOSubmit");
    bind(library, collect, "cuFileBatchIOGetStatus");
    const auto entries = static_cast<unsigned>(wanted.batch);
    const auto allocate =
        reinterpret_cast<void* (*)(int, std::size_t)>(::dlsym(library, "sidestepCufileAllocate"));
    const auto start = [=, &wanted, &cuda, &context]() -> Reader {
        void* batch = nullptr;
        if (set_up(&batch, entries).code != 0) give_up(path + ": cuFileBatchIOSetUp is refused");
        void* const memory = cuda.context == nullptr && allocate != nullptr
                                 ? allocate(wanted.gpu, wanted.size * entries)
                                 : gpu_memory(wanted, cuda, context, entries);
        return [=, &wanted](Bytes offset) -> ssize_t {
            std::vector<Entry> list(entries);
            for (unsigned i = 0; i < entries; ++i) {
                const Bytes at = wanted.size * i;
                list[i] = {
                    1, memory, static_cast<off_t>(offset + at), static_cast<off_t>(at), wanted.size, file,
                    0, nullptr};
            }
            if (submit(batch, entries, list.data(), 0).code != 0) return -1;
            std::vector<Ended> ended(entries);
            unsigned count = entries;
            if (collect(batch, entries, &count, ended.data(), nullptr).code != 0 || count != entries)
                return -1;
            for (const Ended& one : ended)
                if (one.result != wanted.size) return -1;
            return static_cast<ssize_t>(wanted.size);
        };
    };
    return {"batch:" + path, start, {}, 1, wanted.batch};
}

Way library_way(const Wanted& wanted, const Cuda& cuda, const Context& context, const std::string& path) {
    void* library = load_library(path);
    void* const file = open_in(library, wanted, cuda, path);
    Status (*add_memory)(const void*, std::size_t, int) = nullptr;
    ssize_t (*read)(void*, void*, std::size_t, off_t, off_t) = nullptr;
    bind(library, add_memory, "cuFileBufRegister");
    bind(library, read, "cuFileRead");
    const auto allocate =
        reinterpret_cast<void* (*)(int, std::size_t)>(::dlsym(library, "sidestepCufileAllocate"));
    return {path,
            [=, &wanted, &cuda, &context]() -> Reader {
                if (cuda.context == nullptr && allocate == nullptr)
                    give_up("this library has no emulated GPU");
                void* const memory = cuda.context == nullptr ? allocate(wanted.gpu, wanted.size)
                                                             : gpu_memory(wanted, cuda, context);
                if (wanted.registered)
                    if (const Status added = add_memory(memory, wanted.size, 0); added.code != 0)
                        give_up(fmt::format("{}: cuFileBufRegister answers {}", path, added.code));
                return [=, &wanted](Bytes offset) {
                    return read(file, memory, wanted.size, static_cast<off_t>(offset), 0);
                };
            },
            {}};
}

Way engine_way(const Wanted& wanted, const Cuda& cuda, const Context& context) {
    return {"engine",
            [&]() -> Reader {
                const Buffer memory = Buffer::gpu(wanted.gpu, gpu_memory(wanted, cuda, context), wanted.size);
                return [&, memory](Bytes offset) -> ssize_t {
                    auto done = context.copy(Buffer::file(wanted.file, offset, wanted.size), memory).wait();
                    if (!done) give_up(done.error().to_string());
                    return static_cast<ssize_t>(done->bytes);
                };
            },
            {}};
}

Way pread_way(const Wanted& wanted, const Cuda& cuda, const Context& context) {
    if (cuda.context == nullptr) give_up("pread needs CUDA");
    const int file = ::open(wanted.file.c_str(), O_RDONLY | O_CLOEXEC);
    return {"pread",
            [&, file]() -> Reader {
                const auto target = reinterpret_cast<unsigned long long>(gpu_memory(wanted, cuda, context));
                void* stream = nullptr;
                void* pinned = nullptr;
                if (cuda.create_stream(&stream, 1) != 0 || cuda.allocate_host(&pinned, wanted.size, 0) != 0)
                    give_up("no stream, or no page-locked memory");
                return [&, file, target, stream, pinned](Bytes offset) -> ssize_t {
                    const ssize_t got = ::pread(file, pinned, wanted.size, static_cast<off_t>(offset));
                    if (got <= 0 || cuda.copy(target, pinned, static_cast<std::size_t>(got), stream) != 0 ||
                        cuda.synchronize(stream) != 0)
                        return -1;
                    return got;
                };
            },
            {}};
}

// Calls a second of all threads together.
double run_round(const Wanted& wanted, const std::vector<Reader>& readers, int reads, Bytes file_size) {
    const Bytes size = wanted.size * static_cast<Bytes>(reads);
    const Bytes places = (file_size - size) / 4096 + 1;
    std::atomic<bool> go{false}, stop{false};
    std::atomic<std::uint64_t> calls{0};
    std::vector<std::thread> threads;
    for (std::size_t thread = 0; thread < readers.size(); ++thread)
        threads.emplace_back([&, thread] {
            std::uint64_t state = thread * 0x9e3779b97f4a7c15U + 1, done = 0;
            while (!go) std::this_thread::yield();
            for (Bytes at = thread; !stop; at += readers.size(), ++done) {
                state = state * 6364136223846793005U + 1442695040888963407U;
                const Bytes offset =
                    wanted.random ? (state >> 20) % places * 4096 : at % (file_size / size) * size;
                if (readers[thread](offset) != static_cast<ssize_t>(wanted.size))
                    give_up("a read came short");
            }
            calls += done;
        });
    const auto begun = Clock::now();
    go = true;
    std::this_thread::sleep_for(std::chrono::duration<double>(wanted.seconds));
    stop = true;
    for (std::thread& thread : threads) thread.join();
    return static_cast<double>(calls) / std::chrono::duration<double>(Clock::now() - begun).count();
}

void tell(const Wanted& wanted, Way& way) {
    auto& all = way.calls_a_second;
    std::sort(all.begin(), all.end());
    const double median = base::median(all);
    const double a_thread = median / way.threads;
    const auto bytes = static_cast<double>(wanted.size) * way.reads;
    fmt::print(
        "{:<60} {:>8} x {:>2}{}{}  {:8.3f} GB/s [{:.3f} .. {:.3f}]  {:10.0f} calls/s a thread  {:9.2f} us a "
        "call\n",
        way.name, format_bytes(wanted.size), way.threads * way.reads, wanted.random ? " random" : "",
        wanted.registered ? " registered" : "", median * bytes / 1e9, all.front() * bytes / 1e9,
        all.back() * bytes / 1e9, a_thread, 1e6 / a_thread);
}

int measure(const Wanted& wanted) {
    Cuda cuda;
    auto opened = Context::open();
    if (!opened) give_up(opened.error().to_string());
    const Context& context = *opened;
    if (!context.topology().emulated() && !cuda.load(wanted.gpu)) give_up("CUDA sees no such GPU");
    const int file = ::open(wanted.file.c_str(), O_RDONLY | O_CLOEXEC);
    const off_t size = file < 0 ? -1 : ::lseek(file, 0, SEEK_END);
    const bool batches = std::any_of(wanted.ways.begin(), wanted.ways.end(),
                                     [](const std::string& name) { return name.starts_with("batch:"); });
    if (size < static_cast<off_t>(wanted.size) * (batches ? wanted.batch : 1))
        give_up(wanted.file + " is not there, or shorter than a read");
    std::vector<char> warm(std::size_t{4} << 20);
    for (off_t at = 0; at < size; at += static_cast<off_t>(warm.size()))
        if (::pread(file, warm.data(), warm.size(), at) < 0) give_up("the file cannot be read");
    std::vector<Way> ways;
    std::vector<std::vector<Reader>> readers;
    for (const std::string& name : wanted.ways) {
        const bool batch = name.starts_with("batch:");
        ways.push_back(name == "engine"  ? engine_way(wanted, cuda, context)
                       : name == "pread" ? pread_way(wanted, cuda, context)
                       : batch           ? batch_way(wanted, cuda, context, name.substr(6))
                                         : library_way(wanted, cuda, context, name));
        if (!batch) ways.back().threads = wanted.threads;
        readers.emplace_back();
        for (int thread = 0; thread < ways.back().threads; ++thread)
            readers.back().push_back(ways.back().start());
    }
    for (int round = -1; round < wanted.rounds; ++round)
        for (std::size_t i = 0; i < ways.size(); ++i) {
            const double rate = run_round(wanted, readers[i], ways[i].reads, static_cast<Bytes>(size));
            if (round >= 0) ways[i].calls_a_second.push_back(rate);
        }
    for (Way& way : ways) tell(wanted, way);
    return 0;
}

}  // namespace

int main(int count, char** arguments) {
    Wanted wanted;
    CLI::App app("Reads of a warm file into GPU memory by several threads, in several ways");
    app.add_option("--file", wanted.file, "The file; it is read once before")->required();
    app.add_option("--size", wanted.size_text, "Bytes of one read");
    app.add_option("--threads", wanted.threads, "Threads that read at the same time")
        ->check(CLI::Range(1, 256));
    app.add_option("--batch", wanted.batch, "Reads of a batch")->check(CLI::Range(1, 128));
    app.add_option("--gpu", wanted.gpu, "CUDA's number of the GPU");
    app.add_option("--seconds", wanted.seconds, "Length of a round");
    app.add_option("--rounds", wanted.rounds, "Rounds of each way, in turns; the median is told")
        ->check(CLI::Range(1, 1000));
    app.add_flag("--random", wanted.random, "Offsets by chance");
    app.add_flag("--registered", wanted.registered, "Memory that the library was told of");
    app.add_option("--way", wanted.ways, "A library's path, batch: and one, engine or pread; several times")
        ->required();
    CLI11_PARSE(app, count, arguments);
    const auto size = parse_bytes(wanted.size_text);
    if (!size || *size == 0) give_up("the size cannot be read");
    wanted.size = *size;
    return measure(wanted);
}
