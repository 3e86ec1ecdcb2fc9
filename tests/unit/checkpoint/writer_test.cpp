// What is written in front of tensors, and the index of several files.
#include <gtest/gtest.h>

#include "checkpoint/safetensors.hpp"
#include "checkpoint/shard_index.hpp"
#include "tests/unit/checkpoint/checkpoint_files.hpp"

namespace sidestep::checkpoint {
namespace {

using Shape = std::vector<std::uint64_t>;

TEST(WrittenHeader, IsTheReferencesByteForByte) {
    const std::vector<TensorToWrite> tensors = {{"bias", Dtype::bf16, {3}},
                                                {"\xC3\xA4\n\"", Dtype::f32, {2, 2}},
                                                {"a", Dtype::u8, {5}},
                                                {"b", Dtype::f32, {}}};
    const auto header = write_header(tensors, {{"format", "pt"}});
    ASSERT_TRUE(header.ok()) << header.error().to_string();
    // serialize() of safetensors 0.8.0 gives this header for these tensors.
    const std::string json =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
        "\"\xC3\xA4\\n\\\"\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[4,20]},"
        "\"bias\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[20,26]},"
        "\"a\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[26,31]}}";
    const std::size_t padded = (json.size() + 7) / 8 * 8;
    EXPECT_EQ(header->bytes, number_bytes(padded, 8) + json + std::string(padded - json.size(), ' '));
    const Bytes data = 8 + padded;
    EXPECT_EQ(header->order, (std::vector<std::size_t>{3, 1, 0, 2}));
    EXPECT_EQ(header->offsets, (std::vector<Bytes>{data + 20, data + 4, data + 26, data}));
    EXPECT_EQ(header->sizes, (std::vector<Bytes>{6, 16, 5, 4}));
    EXPECT_EQ(header->file_size, data + 31);
}

TEST(WrittenHeader, ReadsAgain) {
    std::vector<TensorToWrite> tensors;
    for (int i = 0; i < static_cast<int>(Dtype::other); ++i)
        tensors.push_back({std::to_string(i), static_cast<Dtype>(i), Shape{2, 4}});
    tensors.push_back({"none", Dtype::f32, Shape{0}});
    const auto header = write_header(tensors, {});
    ASSERT_TRUE(header.ok()) << header.error().to_string();
    EXPECT_EQ(header->bytes.size() % 8, 0U);
    const auto read = parse_header(std::string_view(header->bytes).substr(8), header->file_size, {}, "f");
    ASSERT_TRUE(read.ok()) << read.error().to_string();
    ASSERT_EQ(read->tensors.size(), tensors.size());
    for (const TensorInfo& tensor : read->tensors) {
        const std::size_t i = tensor.name == "none" ? tensors.size() - 1 : std::stoul(tensor.name);
        EXPECT_EQ(tensor.dtype, tensors[i].dtype);
        EXPECT_EQ(tensor.shape, tensors[i].shape);
        EXPECT_EQ(tensor.offset, header->offsets[i]);
        EXPECT_EQ(tensor.bytes, header->sizes[i]);
    }
}

TEST(WrittenHeader, OfNothing) {
    const auto header = write_header({}, {});
    ASSERT_TRUE(header.ok());
    EXPECT_EQ(header->bytes, number_bytes(8, 8) + "{}      ");
    EXPECT_EQ(header->file_size, 16U);
}

TEST(WrittenHeader, RefusesWhatCannotBeRead) {
    const std::uint64_t many = std::uint64_t{1} << 40;
    const std::vector<std::pair<std::string, TensorToWrite>> bad = {
        {"named twice", {"a", Dtype::f32, {}}},
        {"no UTF-8", {"\xff", Dtype::f32, {}}},
        {"stands for metadata", {"__metadata__", Dtype::f32, {}}},
        {"no type", {"b", Dtype::other, {4}}},
        {"within a byte", {"b", Dtype::f4, {3}}},
        {"more elements", {"b", Dtype::f32, {many, many}}},
        {"more bits", {"b", Dtype::f32, {many, 1 << 20}}},
    };
    for (const auto& [words, tensor] : bad) {
        SCOPED_TRACE(words);
        const auto header = write_header({{"a", Dtype::u8, {1}}, tensor}, {});
        ASSERT_FALSE(header.ok());
        EXPECT_EQ(header.error().code, ErrorCode::invalid_argument);
        EXPECT_NE(header.error().message.find(words), std::string::npos) << header.error().message;
    }
    EXPECT_FALSE(write_header({}, {{"k", "1"}, {"k", "2"}}).ok());
    EXPECT_FALSE(write_header({}, {{"k", "\xff"}}).ok());
    EXPECT_FALSE(write_header({}, {{"\xff", ""}}).ok());
}

TEST(WrittenHeader, OfTooManyBytesIsRefused) {
    const std::vector<TensorToWrite> tensors = {{std::string(100'000'000, 'a'), Dtype::u8, {1}}};
    const auto header = write_header(tensors, {});
    ASSERT_FALSE(header.ok());
    EXPECT_NE(header.error().hint.find("shard_bytes"), std::string::npos);
}

TEST(WrittenIndex, ReadsAgain) {
    EXPECT_EQ(shard_name(1, 12), "model-00002-of-00012.safetensors");
    const std::string text = write_shard_index({{"b", shard_name(1, 2)}, {"a\"", shard_name(0, 2)}}, 48);
    EXPECT_EQ(text, R"({
  "metadata": {
    "total_size": 48
  },
  "weight_map": {
    "a\"": "model-00001-of-00002.safetensors",
    "b": "model-00002-of-00002.safetensors"
  }
}
)");
    const auto index = parse_shard_index(text, "i");
    ASSERT_TRUE(index.ok()) << index.error().to_string();
    EXPECT_EQ(index->shards, (std::vector<std::string>{shard_name(0, 2), shard_name(1, 2)}));
    EXPECT_EQ(index->total_size, 48U);
    EXPECT_TRUE(parse_shard_index(write_shard_index({}, 0), "i").ok());
}

}  // namespace
}  // namespace sidestep::checkpoint
