#include "backend/network.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace sidestep::backend {
namespace {

// As it lies in the memory of all machines that this is built for.
static_assert(std::endian::native == std::endian::little);

unsigned char* put(unsigned char* to, std::uint64_t number) {
    std::memcpy(to, &number, sizeof(number));
    return to + sizeof(number);
}

std::uint64_t number_at(const unsigned char* from) {
    std::uint64_t number = 0;
    std::memcpy(&number, from, sizeof(number));
    return number;
}

}  // namespace

std::array<unsigned char, frame_bytes> to_bytes(const Frame& frame) {
    std::array<unsigned char, frame_bytes> bytes{};
    unsigned char* at = put(
        bytes.data(), static_cast<std::uint64_t>(frame.kind) | static_cast<std::uint64_t>(frame.to_gpu) << 8);
    at = put(at, frame.request);
    at = put(at, frame.region);
    at = put(at, frame.offset);
    at = put(at, frame.size);
    at = put(at, frame.target);
    at = put(at, frame.target_offset);
    put(at, frame.at);
    return bytes;
}

Result<Frame> parse_frame(const unsigned char* bytes) {
    const auto wrong = [](const char* what) {
        return Error{ErrorCode::io_error, fmt::format("the other machine sent {}", what), "frame",
                     "use one version of sidestep"};
    };
    const std::uint64_t head = number_at(bytes), kind = head & 0xff, to_gpu = head >> 8;
    if (kind < 1 || kind > static_cast<std::uint64_t>(Frame::Kind::gather) || to_gpu > most_told_gpus)
        return wrong("something that is no frame");
    Frame frame{static_cast<Frame::Kind>(kind), number_at(bytes + 8),  number_at(bytes + 16),
                number_at(bytes + 24),          number_at(bytes + 32), number_at(bytes + 40),
                number_at(bytes + 48),          number_at(bytes + 56), static_cast<std::uint8_t>(to_gpu)};
    const bool push = frame.kind == Frame::Kind::push || frame.kind == Frame::Kind::scatter;
    if (push && frame.size > max_push) return wrong("a push that is too large");
    if (frame.kind == Frame::Kind::places && frame.size > most_places * place_bytes)
        return wrong("more places than may be");
    if (frame.kind == Frame::Kind::fault && frame.size > max_fault) return wrong("a fault that is too long");
    if (std::max({frame.offset, frame.target_offset, frame.at}) > ~Bytes{0} - frame.size)
        return wrong("a range past the largest offset");
    const bool summed = frame.has_payload() && frame.kind != Frame::Kind::fault;
    const bool may_lead_on = frame.kind == Frame::Kind::pass || frame.kind == Frame::Kind::gather;
    if ((frame.target != 0 && !summed && !may_lead_on) ||
        (frame.target_offset != 0 && frame.kind != Frame::Kind::pass))
        return wrong("a target where there is none");
    if (frame.at != 0 && (frame.region == 0 || !frame.is_of_a_request()))
        return wrong("a place in a request where there is none");
    return frame;
}

std::string to_bytes(std::span<const RegionPart> places) {
    std::string bytes(places.size() * place_bytes, '\0');
    auto* at = reinterpret_cast<unsigned char*>(bytes.data());
    for (const RegionPart& place : places) at = put(put(at, place.offset), place.size);
    return bytes;
}

Result<std::vector<RegionPart>> parse_places(std::string_view bytes) {
    const auto wrong = [] {
        return Error{ErrorCode::io_error, "the other machine sent something that is no list of places",
                     "frame", "use one version of sidestep"};
    };
    if (bytes.empty() || bytes.size() % place_bytes != 0 || bytes.size() / place_bytes > most_places)
        return wrong();
    std::vector<RegionPart> places(bytes.size() / place_bytes);
    const auto* at = reinterpret_cast<const unsigned char*>(bytes.data());
    for (RegionPart& place : places) {
        place = {number_at(at), number_at(at + 8)};
        if (place.size > max_push || place.offset > ~Bytes{0} - place.size) return wrong();
        at += place_bytes;
    }
    return places;
}

void Link::send_all(std::span<const Outgoing> frames, std::function<void()> sent) {
    count_sent(frames.size(), std::move(sent), [&](std::size_t i, std::function<void()> told) {
        send(frames[i].finished(), frames[i].payload, std::move(told));
    });
}

}  // namespace sidestep::backend
