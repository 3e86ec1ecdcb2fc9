// A frame's bytes.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include "backend/network.hpp"

namespace sidestep::backend {
namespace {

using FrameBytes = std::array<unsigned char, frame_bytes>;
constexpr Bytes most_bytes = std::numeric_limits<Bytes>::max();

std::vector<Frame> good_frames() {
    return {
        {Frame::Kind::push, 1, 2, 3, 4},
        {Frame::Kind::push, most_bytes, most_bytes, most_bytes - max_push, max_push},
        {Frame::Kind::push, 0, 0, most_bytes, 0},
        {Frame::Kind::confirm, 7, 0, 0, most_bytes},
        {Frame::Kind::confirm, 7, 8, 9, 10},
        {Frame::Kind::pull, 1, 2, 1, most_bytes - 1},
        {Frame::Kind::fault, 1, 0, 1ull << 40, max_fault},
        {Frame::Kind::fault, 1, 0, 0, 0},
        {Frame::Kind::pass, 1, 2, 3, 4, 5, 6},
        {Frame::Kind::pass, 1, 2, 1, most_bytes - 6, most_bytes, 6},
        {Frame::Kind::push, 1, 2, 3, 4, 0, 0, most_bytes - 4},
        {Frame::Kind::pull, 1, 2, 3, 4, 0, 0, 5},
        {Frame::Kind::pass, 1, 2, 3, 4, 5, 6, 7},
        {Frame::Kind::places, 1, 2, 0, most_places * place_bytes, 0, 0, 7},
        {Frame::Kind::scatter, 1, 2, 0, max_push, 0, 0, 7},
        {Frame::Kind::gather, 1, 2, 0, 1ull << 40, 0, 0, 7},
        {Frame::Kind::gather, 1, 2, 0, 4, 5, 0, 7},
        {Frame::Kind::push, 1, 2, 3, 4, 0, 0, 0, 1},
        {Frame::Kind::pull, 1, 2, 3, 4, 0, 0, 5, most_told_gpus},
    };
}

TEST(Frame, SurvivesTheWay) {
    for (const Frame& frame : good_frames()) {
        const auto came = parse_frame(to_bytes(frame).data());
        ASSERT_TRUE(came.ok()) << came.error().to_string();
        EXPECT_EQ(*came, frame) << static_cast<int>(frame.kind);
    }
}

// Other machines read these very bytes.
TEST(Frame, HasItsLowestBytesFirst) {
    const FrameBytes pass =
        to_bytes({Frame::Kind::pass, 0x0102030405060708, 0x1112131415161718, 0x2122232425262728,
                  0x3132333435363738, 0x4142434445464748, 0x5152535455565758, 0x6162636465666768});
    const FrameBytes golden = {
        5,    0,    0,    0,    0,    0,    0,    0,     //
        0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01,  // request
        0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,  // region
        0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21,  // offset
        0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31,  // size
        0x48, 0x47, 0x46, 0x45, 0x44, 0x43, 0x42, 0x41,  // target
        0x58, 0x57, 0x56, 0x55, 0x54, 0x53, 0x52, 0x51,  // offset there
        0x68, 0x67, 0x66, 0x65, 0x64, 0x63, 0x62, 0x61,  // of the request
    };
    EXPECT_EQ(pass, golden);
    const auto kind = [](Frame::Kind one) { return static_cast<int>(to_bytes({one, 0, 0, 0, 0})[0]); };
    EXPECT_EQ(kind(Frame::Kind::push), 1);
    EXPECT_EQ(kind(Frame::Kind::confirm), 2);
    EXPECT_EQ(kind(Frame::Kind::pull), 3);
    EXPECT_EQ(kind(Frame::Kind::fault), 4);
    EXPECT_EQ(kind(Frame::Kind::pass), 5);
    EXPECT_EQ(kind(Frame::Kind::places), 6);
    EXPECT_EQ(kind(Frame::Kind::scatter), 7);
    EXPECT_EQ(kind(Frame::Kind::gather), 8);
}

TEST(Frame, OtherBytesAreNone) {
    struct Case {
        const char* what;
        std::size_t at;
        std::vector<unsigned char> bytes;
    };
    const std::vector<Case> cases = {
        {"kind 0", 0, {0}},
        {"kind 9", 0, {9}},
        {"kind 255", 0, {255}},
        {"a GPU past the last", 1, {most_told_gpus + 1}},
        {"a GPU of 2 bytes", 2, {1}},
        {"a kind of 8 bytes", 7, {1}},
        {"a push one too large", 32, {1, 0, 0x10}},
        {"a push of 2^32", 36, {1}},
        {"the largest push", 32, std::vector<unsigned char>(8, 0xff)},
        {"past the largest offset", 24, std::vector<unsigned char>(8, 0xff)},
        {"a push with an offset there", 48, {1}},
        {"past the largest place in a request", 56, std::vector<unsigned char>(8, 0xff)},
    };
    for (const Case& one : cases) {
        FrameBytes bytes = to_bytes({Frame::Kind::push, 1, 2, 3, 4});
        ASSERT_TRUE(parse_frame(bytes.data()).ok());
        std::copy(one.bytes.begin(), one.bytes.end(), bytes.begin() + static_cast<std::ptrdiff_t>(one.at));
        const auto came = parse_frame(bytes.data());
        ASSERT_FALSE(came.ok()) << one.what;
        EXPECT_EQ(came.error().code, ErrorCode::io_error) << one.what;
        EXPECT_FALSE(came.error().message.empty()) << one.what;
    }
    EXPECT_FALSE(parse_frame(FrameBytes{}.data()).ok());
}

TEST(Frame, BoundsAreOfTheirKinds) {
    struct Case {
        Frame frame;
        bool good;
    };
    const std::vector<Case> cases = {
        {{Frame::Kind::push, 1, 1, 0, max_push}, true},
        {{Frame::Kind::push, 1, 1, 0, max_push + 1}, false},
        {{Frame::Kind::fault, 1, 0, 0, max_fault}, true},
        {{Frame::Kind::fault, 1, 0, 0, max_fault + 1}, false},
        {{Frame::Kind::pull, 1, 1, 0, max_push + 1}, true},
        {{Frame::Kind::pull, 1, 1, 1, most_bytes}, false},
        {{Frame::Kind::pull, 1, 1, most_bytes, 1}, false},
        {{Frame::Kind::pull, 1, 1, most_bytes, most_bytes}, false},
        {{Frame::Kind::push, 1, 1, most_bytes - 3, 4}, false},
        {{Frame::Kind::push, 1, 1, most_bytes - 4, 4}, true},
        {{Frame::Kind::confirm, 1, 0, most_bytes, 1}, false},
        {{Frame::Kind::fault, 1, 0, most_bytes, 1}, false},
        {{Frame::Kind::scatter, 1, 1, 0, max_push + 1}, false},
        {{Frame::Kind::places, 1, 1, 0, most_places * place_bytes + 1}, false},
        {{Frame::Kind::push, 1, 0, 0, 1, 0, 0, 1}, false},
        {{Frame::Kind::confirm, 1, 0, 0, 1, 0, 0, 1}, false},
        {{Frame::Kind::confirm, 1, 1, 0, 1, 0, 0, 1}, false},
        {{Frame::Kind::fault, 1, 1, 0, 1, 0, 0, 1}, false},
        {{Frame::Kind::pull, 1, 1, 0, 1, 0, 0, most_bytes}, false},
        {{Frame::Kind::pass, 1, 1, 0, most_bytes, 1, 0}, true},
        {{Frame::Kind::push, 1, 1, 0, 1, ~0ull}, true},  // a checksum
        {{Frame::Kind::scatter, 1, 1, 0, 1, 1}, true},
        {{Frame::Kind::places, 1, 1, 0, place_bytes, 1}, true},
        {{Frame::Kind::fault, 1, 0, 0, 1, 1}, false},
        {{Frame::Kind::confirm, 1, 0, 0, 1, 1}, false},
        {{Frame::Kind::pull, 1, 1, 0, 1, 1}, false},
        {{Frame::Kind::gather, 1, 1, 0, 1, 1}, true},
        {{Frame::Kind::gather, 1, 1, 0, 1, 1, 1}, false},
        {{Frame::Kind::pass, 1, 1, 0, most_bytes, 1, 1}, false},
        {{Frame::Kind::pass, 1, 1, 1, most_bytes, 1, 0}, false},
    };
    for (const auto& [frame, good] : cases) {
        EXPECT_EQ(parse_frame(to_bytes(frame).data()).ok(), good)
            << static_cast<int>(frame.kind) << " " << frame.offset << " " << frame.size;
    }
}

TEST(Frame, SomeHaveMoreBehindThem) {
    EXPECT_TRUE(Frame{Frame::Kind::push}.has_payload());
    EXPECT_TRUE(Frame{Frame::Kind::fault}.has_payload());
    EXPECT_FALSE(Frame{Frame::Kind::confirm}.has_payload());
    EXPECT_FALSE(Frame{Frame::Kind::pull}.has_payload());
    EXPECT_FALSE(Frame{Frame::Kind::pass}.has_payload());
}

TEST(Places, SurviveTheWay) {
    const std::vector<RegionPart> places{{0, 1}, {1ull << 40, max_push}, {most_bytes - 5, 5}, {7, 0}};
    const std::string bytes = to_bytes(places);
    EXPECT_EQ(bytes.size(), places.size() * place_bytes);
    EXPECT_EQ(parse_places(bytes).value(), places);
    EXPECT_EQ(parse_places(to_bytes(std::vector<RegionPart>(most_places))).value().size(), most_places);
}

TEST(Places, OtherBytesAreNone) {
    const std::vector<RegionPart> many(most_places + 1);
    for (const std::string& bytes :
         {std::string(), std::string(15, '\0'), std::string(17, '\0'), to_bytes(many),
          to_bytes(std::vector<RegionPart>{{0, max_push + 1}}),
          to_bytes(std::vector<RegionPart>{{most_bytes, 1}}), std::string(16, '\xff')})
        EXPECT_EQ(parse_places(bytes).error().code, ErrorCode::io_error) << bytes.size();
}

TEST(Join, WhatGoesOnIsOnePart) {
    unsigned char memory[64];
    std::vector<Memory> parts;
    const auto add = [&](std::size_t offset, Bytes size) { join(parts, {memory + offset, size}); };
    add(8, 4);
    add(12, 4);
    add(40, 0);  // nothing lies there
    add(16, 1);
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_EQ(parts[0].address, memory + 8);
    EXPECT_EQ(parts[0].size, 9u);
    const Outgoing one = Outgoing::of({Frame::Kind::push, 1, 2, 3, 9}, parts);
    EXPECT_EQ(one.payload, memory + 8);
    EXPECT_TRUE(one.parts.empty());
    add(18, 2);  // a byte further on
    add(17, 1);  // before it
    ASSERT_EQ(parts.size(), 3u);
    EXPECT_EQ(parts[1].address, memory + 18);
    EXPECT_EQ(parts[2].address, memory + 17);
    const Outgoing several = Outgoing::of({Frame::Kind::push, 1, 2, 3, 12}, parts);
    EXPECT_EQ(several.payload, nullptr);
    EXPECT_EQ(several.parts.size(), 3u);
}

}  // namespace
}  // namespace sidestep::backend
