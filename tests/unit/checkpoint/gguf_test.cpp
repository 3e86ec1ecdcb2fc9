// GGUF files.
#include "checkpoint/gguf.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <sidestep/checkpoint.hpp>

#include "checkpoint/gguf_types.hpp"
#include "tests/unit/checkpoint/gguf_files.hpp"

namespace sidestep::checkpoint {
namespace {

constexpr std::uint32_t f32 = 0;
constexpr std::uint32_t q4_k = 12;

Result<GgufHeader> parse_file(std::string_view file) {
    return parse_gguf(file, file.size(), "f.gguf");
}

TEST(Gguf, SaysWhatIsInTheFile) {
    GgufParts parts;
    parts.pairs = {gguf_pair("general.architecture", 8, gguf_text("llama"))};
    // Not in the order of their offsets.
    parts.tensors = {gguf_tensor("b", {512, 3}, q4_k, 32), gguf_tensor("a", {4, 2}, f32, 0)};
    parts.data = 32 + 6 * 144;
    const auto header = parse_file(gguf_file(parts));
    ASSERT_TRUE(header.ok()) << header.error().to_string();
    EXPECT_EQ(header->needs, 0U);
    EXPECT_EQ(header->data_begin % 32, 0U);
    ASSERT_EQ(header->tensors.size(), 2U);
    const TensorInfo& a = header->tensors[0];
    EXPECT_EQ(a.name, "a");
    EXPECT_EQ(a.dtype, Dtype::f32);
    EXPECT_EQ(a.shape, (std::vector<std::uint64_t>{2, 4})) << "outermost first";
    EXPECT_EQ(a.offset, header->data_begin);
    EXPECT_EQ(a.bytes, 32U);
    const TensorInfo& b = header->tensors[1];
    EXPECT_EQ(b.dtype, Dtype::other);
    EXPECT_EQ(b.type_name, "Q4_K");
    EXPECT_EQ(b.shape, (std::vector<std::uint64_t>{3, 512}));
    EXPECT_EQ(b.offset, header->data_begin + 32);
    EXPECT_EQ(b.bytes, 6U * 144);
}

TEST(Gguf, ValuesOfEveryType) {
    const std::string two_texts = number_bytes(8, 4) + number_bytes(2, 8) + gguf_text("x") + gguf_text("");
    const std::string nested = number_bytes(9, 4) + number_bytes(1, 8) + two_texts;
    const struct {
        std::uint32_t type;
        std::string value;
        std::string text;
    } cases[] = {
        {0, number_bytes(200, 1), "200"},
        {1, number_bytes(0xFE, 1), "-2"},
        {2, number_bytes(65535, 2), "65535"},
        {3, number_bytes(0xFFFF, 2), "-1"},
        {4, number_bytes(4000000000, 4), "4000000000"},
        {5, number_bytes(0xFFFFFFFD, 4), "-3"},
        {6, number_bytes(0x3FC00000, 4), "1.5"},
        {7, number_bytes(1, 1), "true"},
        {7, number_bytes(0, 1), "false"},
        {8, gguf_text("gr\xC3\xBC\xC3\x9F"), "gr\xC3\xBC\xC3\x9F"},
        {9, number_bytes(4, 4) + number_bytes(3, 8) + std::string(12, '\0'), "u32[3]"},
        {9, two_texts, "string[2]"},
        {9, nested, "array[1]"},
        {9, number_bytes(8, 4) + number_bytes(0, 8), "string[0]"},
        {10, number_bytes(~std::uint64_t{0}, 8), "18446744073709551615"},
        {11, number_bytes(~std::uint64_t{0}, 8), "-1"},
        {12, number_bytes(0x3FE0000000000000, 8), "0.5"},
    };
    for (const auto& one : cases) {
        SCOPED_TRACE(one.text);
        GgufParts parts;
        parts.pairs = {gguf_pair("k", one.type, one.value), gguf_pair("next", 8, gguf_text("there"))};
        const auto header = parse_file(gguf_file(parts));
        ASSERT_TRUE(header.ok()) << header.error().to_string();
        ASSERT_EQ(header->metadata.size(), 2U);
        EXPECT_EQ(header->metadata[0].second, one.text);
        EXPECT_EQ(header->metadata[1].second, "there") << "what follows is found";
    }
}

TEST(Gguf, SizesOfTheTypes) {
    // Elements of a block and its bytes, from the layouts in ggml's sources.
    const std::map<std::string, std::pair<int, int>> sizes = {
        {"F32", {1, 4}},
        {"F16", {1, 2}},
        {"BF16", {1, 2}},
        {"Q8_0", {32, 2 + 32}},
        {"Q4_0", {32, 2 + 16}},
        {"Q6_K", {256, 128 + 64 + 16 + 2}},
        {"Q2_K", {256, 16 + 64 + 4}},
        {"IQ4_NL", {32, 2 + 16}},
        {"IQ1_M", {256, 32 + 16 + 8}},
        {"TQ1_0", {256, 2 + 4 * 13}},
        {"MXFP4", {32, 1 + 16}},
        {"NVFP4", {64, 4 + 32}},
    };
    std::size_t checked = 0;
    for (std::uint32_t number = 0; number < 100; ++number) {
        const GgufType* type = find_gguf_type(number);
        if (type == nullptr) continue;
        EXPECT_EQ(type->number, number);
        const auto known = sizes.find(std::string(type->name));
        if (known == sizes.end()) continue;
        EXPECT_EQ(type->block, static_cast<std::uint32_t>(known->second.first)) << type->name;
        EXPECT_EQ(type->block_bytes, static_cast<std::uint32_t>(known->second.second)) << type->name;
        const auto bits = static_cast<std::uint32_t>(bits_of(type->dtype));
        EXPECT_TRUE(type->dtype == Dtype::other || type->block_bytes * 8 == bits) << type->name;
        ++checked;
    }
    EXPECT_EQ(checked, sizes.size());
    EXPECT_EQ(find_gguf_type(43), nullptr);
    EXPECT_EQ(find_gguf_type(~0u), nullptr);
}

TEST(Gguf, Accepts) {
    GgufParts version2;
    version2.version = 2;
    EXPECT_TRUE(parse_file(gguf_file(version2)).ok());

    GgufParts aligned;
    aligned.alignment = 4096;
    aligned.pairs = {gguf_pair("general.alignment", 4, number_bytes(4096, 4))};
    aligned.tensors = {gguf_tensor("a", {1}, f32, 0), gguf_tensor("b", {1}, f32, 4096)};
    aligned.data = 4100;
    const auto header = parse_file(gguf_file(aligned));
    ASSERT_TRUE(header.ok()) << header.error().to_string();
    EXPECT_EQ(header->tensors[1].offset, 8192U);
    EXPECT_EQ(header->metadata[0].second, "4096");

    GgufParts odd;
    odd.tensors = {gguf_tensor("scalar", {}, f32, 0), gguf_tensor("none", {0, 7}, f32, 0)};
    odd.data = 4;
    const auto scalar = parse_file(gguf_file(odd));
    ASSERT_TRUE(scalar.ok()) << scalar.error().to_string();
    EXPECT_EQ(scalar->tensors[0].bytes + scalar->tensors[1].bytes, 4U);

    GgufParts split;
    EXPECT_EQ(parse_file(gguf_file(split))->split.count, 1U);
    split.pairs = {gguf_pair("split.count", 2, number_bytes(3, 2)),
                   gguf_pair("split.no", 2, number_bytes(2, 2)),
                   gguf_pair("split.tensors.count", 5, number_bytes(7, 4))};
    EXPECT_EQ(parse_file(gguf_file(split))->split.count, 3U);
    EXPECT_EQ(parse_file(gguf_file(split))->split.number, 2U);
    EXPECT_EQ(parse_file(gguf_file(split))->split.tensors, 7U);
    split.pairs = {gguf_pair("split.count", 2, number_bytes(0, 2)), gguf_pair("split.no", 8, gguf_text("x"))};
    EXPECT_EQ(parse_file(gguf_file(split))->split.count, 1U);
    EXPECT_FALSE(parse_file(gguf_file(split))->split.tensors.has_value());
}

// A file with the one tensor.
std::string tensor_file(const std::string& tensor, std::size_t data = 64) {
    GgufParts parts;
    parts.tensors = {tensor};
    parts.data = data;
    return gguf_file(parts);
}

std::string pair_file(const std::string& pair) {
    GgufParts parts;
    parts.pairs = {pair};
    return gguf_file(parts);
}

TEST(Gguf, NotesBytesThatAreNoTensors) {
    struct Case {
        const char* what;
        std::uint64_t first, second;  // offsets of two tensors of 4 bytes
        std::size_t data;
        std::vector<std::string> notes;
    };
    const Case cases[] = {
        {"padding only", 0, 32, 36, {}},
        {"padding at the end too", 0, 32, 64, {}},
        {"a gap", 0, 96, 100, {"f: 64 bytes in 1 gap before tensors belong to none of them"}},
        {"two gaps", 32, 96, 128, {"f: 64 bytes in 2 gaps before tensors belong to none of them"}},
        {"bytes at the end", 0, 32, 65, {"f: 1 bytes after the last tensor belong to none"}},
    };
    for (const Case& each : cases) {
        SCOPED_TRACE(each.what);
        GgufParts parts;
        parts.tensors = {gguf_tensor("a", {1}, 0, each.first), gguf_tensor("b", {1}, 0, each.second)};
        parts.data = each.data;
        const std::string file = gguf_file(parts);
        const auto header = checkpoint::parse_gguf(file, file.size(), "f");
        ASSERT_TRUE(header) << header.error().to_string();
        EXPECT_EQ(header->notes, each.notes);
    }
    GgufParts none;
    none.data = 3;
    const std::string file = gguf_file(none);
    EXPECT_EQ(checkpoint::parse_gguf(file, file.size(), "f")->notes.size(), 1u);
}

TEST(Gguf, Refuses) {
    GgufParts twice;
    twice.tensors = {gguf_tensor("a", {1}, f32, 0), gguf_tensor("a", {1}, f32, 32)};
    twice.data = 64;
    GgufParts keys;
    keys.pairs = {gguf_pair("k", 0, "x"), gguf_pair("k", 0, "x")};
    GgufParts overlap;
    overlap.tensors = {gguf_tensor("a", {16}, f32, 0), gguf_tensor("b", {1}, f32, 32)};
    overlap.data = 64;
    GgufParts version1;
    version1.version = 1;
    GgufParts swapped;
    swapped.version = 0x03000000;
    const std::uint64_t huge = ~std::uint64_t{0};
    const std::string head = std::string("GGUF") + number_bytes(3, 4);
    std::string deep;
    for (int i = 0; i < 1000; ++i) deep += number_bytes(9, 4) + number_bytes(1, 8);
    const std::pair<std::string, const char*> cases[] = {
        {"", "the file ends at byte 0"},
        {"GGU", "the file ends"},
        {fmt::format("GGML{}", std::string(100, '\0')), "no GGUF file"},
        {gguf_file(version1), "GGUF version 1"},
        {gguf_file(swapped), "big endian"},
        {head, "the file ends"},
        {head + number_bytes(huge, 8) + number_bytes(0, 8), "the file ends"},
        {head + number_bytes(0, 8) + number_bytes(huge, 8), "the file ends"},
        {pair_file(gguf_pair("k", 13, "x")), "unknown value type 13"},
        {pair_file(gguf_pair("k", 7, "\x02")), "neither true nor false"},
        {pair_file(gguf_pair("\xff", 0, "x")), "no UTF-8"},
        {pair_file(gguf_pair("k", 8, gguf_text("\xff"))), "no UTF-8"},
        {pair_file(gguf_pair(std::string(65536, 'k'), 0, "x")), "more than 65535"},
        {pair_file(gguf_pair("k", 8, number_bytes(huge, 8))), "the file ends"},
        {pair_file(gguf_pair("k", 9, number_bytes(12, 4) + number_bytes(huge, 8))), "the file ends"},
        {pair_file(gguf_pair("k", 9, number_bytes(8, 4) + number_bytes(huge, 8))), "the file ends"},
        {pair_file(gguf_pair("k", 9, number_bytes(99, 4) + number_bytes(0, 8))), "unknown value type 99"},
        {pair_file(gguf_pair("k", 9, deep)), "arrays in one another"},
        {pair_file(gguf_pair("general.alignment", 4, number_bytes(0, 4))), "not a multiple of 8"},
        {pair_file(gguf_pair("general.alignment", 4, number_bytes(12, 4))), "not a multiple of 8"},
        {pair_file(gguf_pair("general.alignment", 10, number_bytes(32, 8))), "not a number of 32 bits"},
        {gguf_file(keys), "metadata \"k\" appears twice"},
        {gguf_file(twice), "tensor \"a\" appears twice"},
        {gguf_file(overlap), "\"a\" and \"b\" overlap"},
        {tensor_file(gguf_tensor("a", {1}, 99, 0)), "type 99, which is not known"},
        {tensor_file(gguf_tensor("a", {1}, 4, 0)), "type Q4_2, which files hold no more"},
        {tensor_file(gguf_tensor("a", {1}, 31, 0)), "type Q4_0_4_4, which files hold no more"},
        {tensor_file(gguf_tensor("a", {100}, q4_k, 0)), "not whole blocks of Q4_K"},
        {tensor_file(gguf_tensor("a", {}, q4_k, 0)), "not whole blocks of Q4_K"},
        {tensor_file(gguf_tensor("a", {1, 1, 1, 1, 1, 1, 1, 1, 1}, f32, 0)), "9 axes"},
        {tensor_file(gguf_text("a") + number_bytes(0xFFFFFFFF, 4)), "4294967295 axes"},
        {tensor_file(gguf_tensor("a", {huge, huge}, f32, 0)), "more elements"},
        {tensor_file(gguf_tensor("a", {huge}, f32, 0)), "more elements"},
        {tensor_file(gguf_tensor("a", {1}, f32, 8)), "not a multiple of 32"},
        {tensor_file(gguf_tensor("a", {1}, f32, 64)), "ends beyond the file"},
        {tensor_file(gguf_tensor("a", {17}, f32, 0)), "ends beyond the file"},
        {tensor_file(gguf_tensor("a", {1}, f32, huge - 31)), "ends beyond the file"},
        {tensor_file(gguf_tensor("a", {huge / 4}, f32, 32)), "ends beyond the file"},
        {tensor_file(gguf_tensor("\xff", {1}, f32, 0)), "no UTF-8"},
    };
    for (const auto& [file, words] : cases) {
        SCOPED_TRACE(words);
        const auto header = parse_file(file);
        ASSERT_FALSE(header.ok());
        EXPECT_EQ(header.error().code, ErrorCode::invalid_argument);
        EXPECT_NE(header.error().message.find(words), std::string::npos) << header.error().to_string();
        EXPECT_TRUE(header.error().where.starts_with("f.gguf")) << header.error().where;
    }
}

TEST(Gguf, EveryCutIsRefused) {
    GgufParts parts;
    parts.pairs = {gguf_pair("a", 8, gguf_text("text")),
                   gguf_pair("b", 9, number_bytes(4, 4) + number_bytes(2, 8) + "12345678")};
    parts.tensors = {gguf_tensor("a", {8}, f32, 0)};
    parts.data = 32;
    const std::string file = gguf_file(parts);
    ASSERT_TRUE(parse_file(file).ok());
    for (std::size_t size = 0; size < file.size(); ++size)
        EXPECT_FALSE(parse_file(std::string_view(file).substr(0, size)).ok()) << size;
}

TEST(Gguf, AsksForMoreOfTheFile) {
    GgufParts parts;
    parts.pairs = {gguf_pair("k", 8, gguf_text(std::string(1000, 'x')))};
    parts.tensors = {gguf_tensor("a", {8}, f32, 0)};
    parts.data = 32;
    const std::string file = gguf_file(parts);
    Bytes head = 0;
    int rounds = 0;
    for (;; ++rounds) {
        const auto header = parse_gguf(std::string_view(file).substr(0, head), file.size(), "f");
        ASSERT_TRUE(header.ok()) << header.error().to_string();
        if (header->needs == 0) break;
        ASSERT_GT(header->needs, head);
        ASSERT_LE(header->needs, file.size());
        head = header->needs;
    }
    EXPECT_GT(rounds, 5);
}

TEST(Gguf, OpensAsACheckpoint) {
    const Folder folder;
    GgufParts parts;
    // More than is read at first.
    parts.pairs = {
        gguf_pair("tokens", 9, number_bytes(0, 4) + number_bytes(3'000'000, 8) + std::string(3'000'000, 't')),
        gguf_pair("general.name", 8, gguf_text("small"))};
    parts.tensors = {gguf_tensor("a", {256, 2}, q4_k, 0)};
    parts.data = 288;
    const std::string path = folder.write("model.gguf", gguf_file(parts));
    for (const std::string& way : {path, folder.path()}) {
        const auto checkpoint = Checkpoint::open(way);
        ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
        EXPECT_EQ(checkpoint->bytes(), 288U);
        EXPECT_EQ(checkpoint->metadata()[0].second, "u8[3000000]");
        EXPECT_EQ(checkpoint->summary(), "1 tensor, 288 B in 1 file: Q4_K 100 %");
    }
    folder.write("other.gguf", gguf_file(parts));
    const auto two = Checkpoint::open(folder.path());
    ASSERT_FALSE(two.ok());
    EXPECT_EQ(two.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(two.error().message.find("2 GGUF files"), std::string::npos);
}

}  // namespace
}  // namespace sidestep::checkpoint
