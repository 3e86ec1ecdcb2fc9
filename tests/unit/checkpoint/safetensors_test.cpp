// The header of safetensors files.
#include "checkpoint/safetensors.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/unit/checkpoint/header_rules.hpp"

namespace sidestep::checkpoint {
namespace {

Result<SafetensorsHeader> parse_safetensors(std::string_view file, bool lenient = false) {
    CheckpointOptions options;
    options.lenient = lenient;
    const auto length = header_length(file.substr(0, 8), file.size(), "f.safetensors");
    if (!length) return length.error();
    return parse_header(file.substr(8, *length), file.size(), options, "f.safetensors");
}

void check(const std::vector<HeaderRule>& rules) {
    for (const HeaderRule& rule : rules) {
        SCOPED_TRACE(rule.what);
        const auto header = parse_safetensors(rule.file);
        EXPECT_EQ(header.ok(), rule.ours) << (header.ok() ? "" : header.error().to_string());
        if (header.ok()) continue;
        EXPECT_EQ(header.error().code, ErrorCode::invalid_argument);
        EXPECT_NE(header.error().message.find(rule.words), std::string::npos) << header.error().to_string();
        EXPECT_TRUE(header.error().where.starts_with("f.safetensors")) << header.error().where;
        EXPECT_LT(header.error().message.size(), 400U);
    }
}

TEST(SafetensorsHeader, LengthRules) {
    check(length_rules());
}

TEST(SafetensorsHeader, JsonRules) {
    check(json_rules());
}

TEST(SafetensorsHeader, EntryRules) {
    check(entry_rules());
}

TEST(SafetensorsHeader, LayoutRules) {
    check(layout_rules());
}

TEST(SafetensorsHeader, WhereItIsStricterThanTheReference) {
    check(stricter_rules());
}

TEST(SafetensorsHeader, SaysWhatIsInTheFile) {
    const std::string json = R"({"__metadata__":{"format":"pt","k":"1","k":"2"},)"
                             R"("b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},)"
                             R"("a":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
                             R"("z":{"dtype":"U8","shape":[0,5],"data_offsets":[20,20]}}  )";
    const auto header = parse_safetensors(safetensors_file(json, 20));
    ASSERT_TRUE(header.ok()) << header.error().to_string();
    EXPECT_EQ(header->data_begin, 8 + json.size());
    ASSERT_EQ(header->tensors.size(), 3U);
    const TensorInfo& a = header->tensors[0];
    EXPECT_EQ(a.name, "a");
    EXPECT_EQ(a.dtype, Dtype::f64);
    EXPECT_TRUE(a.shape.empty());
    EXPECT_EQ(a.offset, header->data_begin);
    EXPECT_EQ(a.bytes, 8U);
    const TensorInfo& b = header->tensors[1];
    EXPECT_EQ(b.type_name, "BF16");
    EXPECT_EQ(b.shape, (std::vector<std::uint64_t>{2, 3}));
    EXPECT_EQ(b.offset, header->data_begin + 8);
    EXPECT_EQ(b.bytes, 12U);
    EXPECT_EQ(header->tensors[2].bytes, 0U);
    EXPECT_EQ(header->metadata, (TextPairs{{"format", "pt"}, {"k", "2"}}));
}

TEST(SafetensorsHeader, EveryDtype) {
    int count = 0;
    for (int i = 0; i < static_cast<int>(Dtype::other); ++i) {
        const auto dtype = static_cast<Dtype>(i);
        SCOPED_TRACE(to_string(dtype));
        EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
        // Eight elements have as many bytes as one has bits.
        const auto bits = static_cast<std::size_t>(bits_of(dtype));
        std::string name = "\"";
        name += to_string(dtype);
        name += "\"";
        std::string offsets = "[0,";
        offsets += std::to_string(bits);
        offsets += "]";
        const auto header = parse_safetensors(with(name, "[2,4]", offsets, bits));
        ASSERT_TRUE(header.ok()) << header.error().to_string();
        EXPECT_EQ(header->tensors[0].dtype, dtype);
        EXPECT_EQ(header->tensors[0].type_name, to_string(dtype));
        ++count;
    }
    EXPECT_EQ(count, 22);
    EXPECT_EQ(bits_of(Dtype::other), 0);
    EXPECT_FALSE(parse_dtype("other").has_value());
    EXPECT_FALSE(parse_dtype("").has_value());
}

TEST(SafetensorsHeader, ErrorsNameTheByte) {
    const auto bad = parse_safetensors(safetensors_file(R"({"a":{"dtype":"F33"}})", 0));
    ASSERT_FALSE(bad.ok());
    // Behind "F33", 8 bytes of length before it.
    EXPECT_EQ(bad.error().where, "f.safetensors: byte 27");
    const auto utf8 = parse_safetensors(safetensors_file("{\"\xff", 0));
    EXPECT_EQ(utf8.error().where, "f.safetensors: byte 10");
}

TEST(SafetensorsHeader, NamesInErrorsAreShort) {
    const std::string name(10'000, 'n');
    const auto bad = parse_safetensors(safetensors_file(fmt::format("{{{}}}", f32_entry(name, 4, 1)), 8));
    ASSERT_FALSE(bad.ok());
    EXPECT_LT(bad.error().message.size(), 300U);
}

TEST(SafetensorsHeader, LenientTakesPadding) {
    const auto header = parse_safetensors(one() + std::string(100, '\0'), true);
    ASSERT_TRUE(header.ok()) << header.error().to_string();
    EXPECT_EQ(header->tensors[0].bytes, 4U);
    ASSERT_EQ(header->notes.size(), 1U);
    EXPECT_NE(header->notes[0].find("100 bytes"), std::string::npos);
    EXPECT_FALSE(parse_safetensors(with(R"("F32")", "[2]", "[0,8]", 7), true).ok())
        << "missing bytes are not padding";
    EXPECT_TRUE(parse_safetensors(one(), true)->notes.empty());
}

TEST(SafetensorsHeader, LenientTakesUnknownTypesForBytes) {
    const auto header = parse_safetensors(with(R"("F4_NEW")", "[3,5]", "[0,9]", 9), true);
    ASSERT_TRUE(header.ok()) << header.error().to_string();
    EXPECT_EQ(header->tensors[0].dtype, Dtype::other);
    EXPECT_EQ(header->tensors[0].type_name, "F4_NEW");
    EXPECT_EQ(header->tensors[0].bytes, 9U);
    EXPECT_FALSE(parse_safetensors(with(R"("F4_NEW")", "[4294967296,4294967296]", "[0,9]", 9), true).ok());
    EXPECT_FALSE(parse_safetensors(with(R"("F4_NEW")", "[1]", "[1,9]", 9), true).ok())
        << "holes stay refused";
    EXPECT_TRUE(parse_safetensors(with(R"("F4_NEW")", "[0,4]", "[0,0]", 0), true).ok());
    for (const char* shape : {"[0,4]", "[4,0]"}) {
        const auto empty = parse_safetensors(with(R"("F4_NEW")", shape, "[0,9]", 9), true);
        ASSERT_FALSE(empty.ok()) << shape;
        EXPECT_NE(empty.error().message.find("no elements"), std::string::npos) << empty.error().message;
    }
}

TEST(SafetensorsHeader, ManyTensorsOfOneHeader) {
    std::vector<std::string> names;
    for (int i = 0; i < 20'000; ++i) names.push_back(std::to_string(i));
    const auto header = parse_safetensors(small_file(names));
    ASSERT_TRUE(header.ok()) << header.error().to_string();
    EXPECT_EQ(header->tensors.size(), 20'000U);
    EXPECT_EQ(header->tensors.back().name, "19999");
}

}  // namespace
}  // namespace sidestep::checkpoint
