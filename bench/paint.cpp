// Bytes that a copy has to bring, and the look at whether it did.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/case.hpp"

namespace sidestep::bench {
namespace {

// Host memory that other places are painted and read through.
constexpr Bytes window = 16_MiB;
constexpr Bytes page = 4096;

// SplitMix64's output function (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
// 2014).
std::uint64_t mixed(std::uint64_t word) {
    word *= 0x9e3779b97f4a7c15u;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
    return word ^ (word >> 31);
}

// One window of the picture. All windows share the words of the first; the first word of each page says which
// page of the whole it is, so bytes that arrive at another offset are noticed.
class Window {
public:
    Window(Bytes bytes, unsigned seed) : words_((std::min(bytes, window) + 7) / 8), seed_(seed) {
        for (std::size_t i = 0; i < words_.size(); ++i)
            words_[i] = mixed(i + (std::uint64_t{seed} << 40) + 1);
    }
    // The bytes that belong at `offset`, a multiple of the window.
    const char* at(Bytes offset) {
        for (std::size_t i = 0; i < words_.size(); i += page / 8)
            words_[i] = mixed(offset / 8 + i + (std::uint64_t{seed_} << 40) + 1);
        return reinterpret_cast<const char*>(words_.data());
    }

private:
    std::vector<std::uint64_t> words_;
    unsigned seed_;
};

// Calls with the offset and size of each window of `bytes` bytes, until a call fails.
template <typename Call>
Result<void> each_window(Bytes bytes, const Call& call) {
    for (Bytes at = 0; at < bytes; at += window) SIDESTEP_CHECK(call(at, std::min(window, bytes - at)));
    return {};
}

Result<void> copy(const Context& context, const Buffer& from, const Buffer& to) {
    CopyOptions options;
    options.lanes = 1;
    SIDESTEP_CHECK(context.copy(from, to, options).wait());
    return {};
}

// Memory that this process reaches by its address: not that of another machine.
bool addressed(const Buffer& buffer) {
    return buffer.place().is_host() && buffer.place().node().empty();
}

}  // namespace

Result<void> paint(const Context& context, const Buffer& buffer, unsigned seed) {
    Window picture(buffer.size(), seed);
    return each_window(buffer.size(), [&](Bytes at, Bytes bytes) -> Result<void> {
        const char* from = picture.at(at);
        if (addressed(buffer)) {
            std::memcpy(static_cast<char*>(buffer.address()) + at, from, bytes);
            return {};
        }
        return copy(context, Buffer::host(from, bytes), buffer.slice(at, bytes));
    });
}

Result<void> check_painted(const Context& context, const Buffer& buffer, unsigned seed) {
    Window picture(buffer.size(), seed);
    std::vector<char> seen(addressed(buffer) ? 0 : std::min(window, buffer.size()));
    return each_window(buffer.size(), [&](Bytes at, Bytes bytes) -> Result<void> {
        const char* wanted = picture.at(at);
        const char* found = static_cast<const char*>(buffer.address()) + at;
        if (!addressed(buffer)) {
            SIDESTEP_CHECK(copy(context, buffer.slice(at, bytes), Buffer::host(seen.data(), bytes)));
            found = seen.data();
        }
        if (std::memcmp(wanted, found, bytes) == 0) return {};
        const auto wrong = std::mismatch(wanted, wanted + bytes, found).first - wanted;
        return Error{ErrorCode::mismatch,
                     fmt::format("the target holds other bytes than the source from byte {} on",
                                 at + static_cast<Bytes>(wrong)),
                     buffer.place().to_string(),
                     {}};
    });
}

Result<PaintedPair> PaintedPair::make(const Context& context, const Place& from, const Place& to, Bytes bytes,
                                      MemoryKind from_kind, MemoryKind to_kind) {
    PaintedPair pair;
    SIDESTEP_TRY(auto source, context.allocate(from, bytes, from_kind));
    SIDESTEP_TRY(auto target, context.allocate(to, bytes, to_kind));
    pair.from_ = std::move(source);
    pair.to_ = std::move(target);
    SIDESTEP_CHECK(paint(context, pair.from(), 1));
    SIDESTEP_CHECK(paint(context, pair.to(), 2));
    return pair;
}

Result<void> PaintedPair::verify(const Context& context, const Options& options, Figure& figure) const {
    if (!options.verify) return {};
    SIDESTEP_CHECK(check_painted(context, to(), 1));
    figure.verified = true;
    return {};
}

}  // namespace sidestep::bench
