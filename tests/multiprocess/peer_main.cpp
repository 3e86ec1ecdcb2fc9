// The program's main: the tests, or with --peer FOLDER the second process, which obeys lines of standard
// input.
//
//   publish NAME PLACE BYTES SEED   allocates, fills with the seed's pattern, publishes
//   part NAME WHOLE FROM BYTES      publishes a part of the memory that is published as WHOLE
//   withdraw NAME                   withdraws and frees
//   fill NAME SEED                  writes another pattern into what it published
//   check NAME SEED                 whether what it published holds the pattern
//   read NAME SEED BYTES            copies what somebody published, verified, and compares it with the
//   pattern write NAME SEED BYTES           the other way
//   leave COUNT                     opens files until it may open no more than so many
//   open COUNT                      opens so many files more, and closes them
//   fork                            makes a child that does nothing for minutes; answers its number
//   save PATH SHARD BYTES           saves 32 tensors there until it is killed, with the seeds 0 and 1 in turns; SHARD
//                                   as SaveOptions::shard_bytes
//
// Each is answered with "ok" or the code and text of what went wrong.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <sstream>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/multiprocess/process.hpp"

namespace sidestep::multiprocess {
namespace {

struct Held {
    Allocation memory;
    Buffer buffer;
    Publication publication;
};

struct Descriptor {
    explicit Descriptor(int fd) : number(fd) {}
    Descriptor(Descriptor&& other) noexcept : number(std::exchange(other.number, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(number, other.number);
        return *this;
    }
    ~Descriptor() {
        if (number >= 0) ::close(number);
    }
    int number;
};

std::string text_of(const Error& error) {
    return fmt::format("{}: {}", to_string(error.code), error.to_string());
}

class Server {
public:
    explicit Server(Context context) : context_(std::move(context)) {}

    std::string obey(const std::string& line) {
        std::istringstream words(line);
        std::string verb;
        std::string name;
        words >> verb >> name;
        if (verb == "publish") return publish(name, words);
        if (verb == "part") return part(name, words);
        if (verb == "withdraw") return held_.erase(name) == 1 ? "ok" : "no such name";
        if (verb == "leave") return leave(std::stoul(name));
        if (verb == "open") return open(std::stoul(name)).size() == std::stoul(name) ? "ok" : "no";
        if (verb == "fork") return fork_idle();
        unsigned seed = 0;
        Bytes bytes = 0;
        words >> seed >> bytes;
        if (verb == "save") return save_forever(name, seed, bytes);
        if (verb == "fill") return fill(held_.at(name).buffer, seed), "ok";
        if (verb == "check") {
            const std::string difference = differs(held_.at(name).buffer, seed);
            return difference.empty() ? "ok" : difference;
        }
        if (verb == "read" || verb == "write") return copy(name, seed, bytes, verb == "read");
        return "no such command";
    }

private:
    std::string publish(const std::string& name, std::istringstream& words) {
        std::string place;
        Bytes bytes = 0;
        unsigned seed = 0;
        words >> place >> bytes >> seed;
        auto memory = context_.allocate(*Place::parse(place), bytes);
        if (!memory) return text_of(memory.error());
        fill(memory->buffer(), seed);
        auto publication = context_.publish(name, *memory);
        if (!publication) return text_of(publication.error());
        const Buffer buffer = memory->buffer();
        held_.insert_or_assign(name, Held{std::move(*memory), buffer, std::move(*publication)});
        return "ok";
    }

    std::string part(const std::string& name, std::istringstream& words) {
        std::string whole;
        Bytes from = 0;
        Bytes bytes = 0;
        words >> whole >> from >> bytes;
        const Buffer buffer = held_.at(whole).buffer.slice(from, bytes);
        auto publication = context_.publish(name, buffer);
        if (!publication) return text_of(publication.error());
        held_.insert_or_assign(name, Held{Allocation(), buffer, std::move(*publication)});
        return "ok";
    }

    static std::vector<Descriptor> open(std::size_t count) {
        std::vector<Descriptor> opened;
        for (; count > 0; --count)
            if (const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC); fd >= 0) opened.emplace_back(fd);
        return opened;
    }

    std::string leave(std::size_t count) {
        constexpr int limit = 300;
        opened_.clear();
        const rlimit low{limit, limit};
        if (::setrlimit(RLIMIT_NOFILE, &low) != 0) return "no limit";
        std::size_t left = 0;
        for (int fd = 0; fd < limit; ++fd) left += ::fcntl(fd, F_GETFD) < 0 ? 1 : 0;
        opened_ = open(left - std::min(left, count));
        return "ok";
    }

    static std::string fork_idle() {
        const pid_t child = ::fork();
        if (child != 0) return std::to_string(child);
        ::alarm(300);
        for (;;) ::pause();
    }

    std::string save_forever(const std::string& path, Bytes shard, Bytes bytes) {
        std::vector<Allocation> memory;
        for (unsigned seed : {0u, 1u}) {
            auto block = context_.allocate(Place::gpu(0), bytes);
            if (!block) return text_of(block.error());
            fill(block->buffer(), seed);
            memory.push_back(std::move(*block));
        }
        for (unsigned round = 0;; ++round) {
            const Buffer from = memory[round % 2].buffer();
            SaveOptions options;
            options.metadata = {{"seed", std::to_string(round % 2)}};
            options.shard_bytes = shard;
            std::vector<TensorToSave> tensors;
            for (Bytes i = 0; i < 32; ++i)
                tensors.push_back(
                    {std::to_string(i), Dtype::u8, {bytes / 32}, from.slice(i * bytes / 32, bytes / 32)});
            auto saved = context_.save(tensors, path, options).wait();
            if (!saved) return text_of(saved.error());
            if (round == 0) std::cout << "ok" << std::endl;  // there is something to be lost
        }
    }

    std::string copy(const std::string& name, unsigned seed, Bytes bytes, bool reading) {
        auto memory = context_.allocate(Place::gpu(1), bytes);
        if (!memory) return text_of(memory.error());
        if (!reading) fill(memory->buffer(), seed);
        CopyOptions options;
        options.verify = true;
        const Buffer shared = Buffer::shared(name);
        auto done = reading ? context_.copy(shared, memory->buffer(), options).wait()
                            : context_.copy(memory->buffer(), shared, options).wait();
        if (!done) return text_of(done.error());
        const std::string difference = differs(memory->buffer(), seed);
        return difference.empty() ? "ok" : difference;
    }

    Context context_;
    std::map<std::string, Held> held_;
    std::vector<Descriptor> opened_;
};

}  // namespace

}  // namespace sidestep::multiprocess

int main(int count, char** arguments) {
    if (count == 3 && std::string(arguments[1]) == "--peer")
        return sidestep::multiprocess::serve<sidestep::multiprocess::Server>(arguments[2]);
    testing::InitGoogleTest(&count, arguments);
    return RUN_ALL_TESTS();
}
