// The text of manifests, and blocks beside their checksums.
#include "checkpoint/manifest.hpp"

#include <gtest/gtest.h>

#include "tests/unit/checkpoint/checkpoint_files.hpp"

namespace sidestep::checkpoint {
namespace {

constexpr Bytes block = Manifest::usual_block;

TEST(Manifest, HashIsXxh3) {
    // The published value of XXH3_64bits of no byte without a seed.
    EXPECT_EQ(hash_block("", 0), 0x2D06800538D394C2u);
}

TEST(Manifest, ReadsAsWritten) {
    Manifest manifest;
    manifest.files.push_back({"a \"b\".safetensors", 2 * block + 1, {1, ~std::uint64_t{0}, 0xABC}});
    manifest.files.push_back({"empty", 0, {}});
    const std::string text = to_json(manifest);
    EXPECT_NE(text.find("\"0000000000000abc\""), std::string::npos) << text;
    const auto read = parse_manifest(text, "m");
    ASSERT_TRUE(read.ok()) << read.error().to_string();
    ASSERT_EQ(read->files.size(), 2U);
    EXPECT_EQ(read->files[0].name, manifest.files[0].name);
    EXPECT_EQ(read->files[0].size, manifest.files[0].size);
    EXPECT_EQ(read->files[0].blocks, manifest.files[0].blocks);
    EXPECT_EQ(read->files[1].blocks.size(), 0U);
    EXPECT_EQ(read->find("empty"), &read->files[1]);
    EXPECT_EQ(read->find("none"), nullptr);
    EXPECT_EQ(to_json(*read), text);
    EXPECT_TRUE(parse_manifest(to_json(Manifest{}), "m").ok());
}

std::string manifest_text(const std::string& files, const std::string& mark = R"("version": 1)") {
    std::string text =
        R"({"format": "sidestep-manifest", "hash": "xxh3-64", "block": 1048576, "later": [{"blocks": 1}], )";
    text += mark;
    text += R"(, "files": [)";
    text += files;
    return text + "]}";
}

TEST(Manifest, Refuses) {
    const std::pair<std::string, const char*> cases[] = {
        {"", "no JSON"},
        {"[]", "holds a list"},
        {"1", "holds no object"},
        {"{}", "this is not a manifest"},
        {R"({"format": "x"})", "this is not a manifest"},
        {R"({"format": "sidestep-manifest", "version": 1, "hash": "xxh3-64", "files": []})", "is missing"},
        {manifest_text("", R"("version": 2)"), "another version"},
        {manifest_text("", R"("version": "1")"), "another version"},
        {manifest_text("", R"("version": 1, "block": 4096)"), "another size than 1 MiB"},
        {manifest_text("", R"("version": 1, "hash": "md5")"), "another hash"},
        {manifest_text("", R"("version": 1, "files": 3)"), "files is not a list"},
        {manifest_text("1"), "something else than objects"},
        {manifest_text("[]"), "is not an object"},
        {manifest_text(R"({"size": 0, "blocks": []})"), "has no name"},
        {manifest_text(R"({"name": "a", "blocks": []})"), "has no size"},
        {manifest_text(R"({"name": "a", "size": -1, "blocks": []})"), "an invalid size"},
        {manifest_text(R"({"name": "a", "size": 1})"), "has 0 checksums, where its 1 bytes make 1 blocks"},
        {manifest_text(R"({"name": "a", "size": 18446744073709551615, "blocks": []})"), "has 0 checksums"},
        {manifest_text(R"({"name": "a", "size": 0, "blocks": ["0123456789abcdef"]})"), "has 1 checksums"},
        {manifest_text(R"({"name": "a", "size": 1, "blocks": ["0123456789abcde"]})"),
         "no 16 hexadecimal digits"},
        {manifest_text(R"({"name": "a", "size": 1, "blocks": ["0123456789abcdeg"]})"),
         "no 16 hexadecimal digits"},
        {manifest_text(R"({"name": "a", "size": 1, "blocks": ["-123456789abcdef"]})"),
         "no 16 hexadecimal digits"},
        {manifest_text(R"({"name": "a", "size": 1, "blocks": [1]})"), "no 16 hexadecimal digits"},
        {manifest_text(R"({"name": "a", "size": 1, "blocks": [[]]})"), "a checksum that is not a string"},
        {manifest_text(R"({"name": "a", "size": 0, "blocks": []}, {"name": "a", "size": 0, "blocks": []})"),
         "file \"a\" twice"},
    };
    for (const auto& [text, words] : cases) {
        SCOPED_TRACE(text);
        const auto manifest = parse_manifest(text, "m.json");
        ASSERT_FALSE(manifest.ok());
        EXPECT_EQ(manifest.error().code, ErrorCode::invalid_argument);
        EXPECT_NE(manifest.error().message.find(words), std::string::npos) << manifest.error().to_string();
        EXPECT_TRUE(manifest.error().where.starts_with("m.json"));
    }
}

// One file of two blocks and a piece, with three tensors.
class Blocks : public ::testing::Test {
protected:
    void SetUp() override {
        Manifest manifest;
        Manifest::File sums{"f", data_.size(), {}};
        for (Bytes at = 0; at < data_.size(); at += block)
            sums.blocks.push_back(hash_block(data_.data() + at, std::min(block, data_.size() - at)));
        manifest.files.push_back({"other", 0, {}});
        manifest.files.push_back(sums);
        auto created = ManifestCheck::create(manifest, {{"dir/f", data_.size(), 100, 1}}, tensors_, {0});
        ASSERT_TRUE(created.ok()) << created.error().to_string();
        check_.emplace(std::move(*created));
    }

    std::string data_ = std::string(2 * block + 10, 'd');
    std::vector<TensorInfo> tensors_ = {{"a", Dtype::u8, "U8", {block}, 0, 100, block},
                                        {"in a", Dtype::u8, "U8", {0}, 0, 200, 0},
                                        {"none", Dtype::u8, "U8", {0}, 0, 100 + block, 0},
                                        {"b", Dtype::u8, "U8", {100}, 0, 100 + block, 100},
                                        {"c", Dtype::u8, "U8", {10}, 0, 2 * block, 10}};
    std::optional<ManifestCheck> check_;
};

TEST_F(Blocks, OnlyWholeOnesAreCompared) {
    const auto compare = [this](Bytes offset, Bytes size) {
        const auto same = check_->compare(0, offset, data_.data() + offset, size);
        EXPECT_TRUE(same.ok());
        return same.ok() && *same;
    };
    EXPECT_TRUE(compare(0, block));
    EXPECT_TRUE(compare(block, block));
    EXPECT_TRUE(compare(2 * block, 10)) << "the last one is shorter";
    EXPECT_FALSE(compare(0, block - 1));
    EXPECT_FALSE(compare(0, 2 * block));
    EXPECT_FALSE(compare(1, block));
    EXPECT_FALSE(compare(2 * block, 9));
    EXPECT_FALSE(compare(3 * block, 0));
}

TEST_F(Blocks, AWrongByteIsNamed) {
    data_[block + 50] = 'x';
    const auto same = check_->compare(0, block, data_.data() + block, block);
    ASSERT_FALSE(same.ok());
    EXPECT_EQ(same.error().code, ErrorCode::mismatch);
    EXPECT_NE(same.error().message.find("block 1 of dir/f (bytes 1048576 to 2097152)"), std::string::npos)
        << same.error().message;
    EXPECT_NE(same.error().message.find("in it: tensor \"a\", \"b\""), std::string::npos)
        << same.error().message;
}

TEST_F(Blocks, WhatLiesBetweenTwoOffsets) {
    const CheckpointFile file{"f", data_.size(), 100, 1};
    EXPECT_EQ(names_between(tensors_, file, 0, 0, 50), "the header");
    EXPECT_EQ(names_between(tensors_, file, 0, 0, 101), "the header, tensor \"a\"");
    EXPECT_EQ(names_between(tensors_, file, 0, 100 + block, 2 * block + 1), "tensor \"b\", \"c\"");
    EXPECT_EQ(names_between(tensors_, file, 0, 200 + block, 201 + block), "no tensor");
    EXPECT_EQ(names_between(tensors_, file, 1, 100, 200), "no tensor");
    std::vector<TensorInfo> many;
    for (Bytes i = 0; i < 10; ++i) many.push_back({std::to_string(i), Dtype::u8, "U8", {1}, 0, 100 + i, 1});
    EXPECT_EQ(names_between(many, file, 0, 101, 110), "tensor \"1\", \"2\", \"3\" and 6 more");
}

}  // namespace
}  // namespace sidestep::checkpoint
