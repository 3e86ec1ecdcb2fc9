// Indexes of checkpoints in several files: the text, and the files it names.
#include "checkpoint/shard_index.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sidestep/checkpoint.hpp>

#include "tests/unit/checkpoint/checkpoint_files.hpp"

namespace sidestep {
namespace {

using checkpoint::parse_shard_index;
using Pairs = std::vector<std::pair<std::string, std::string>>;

std::string map_of(const std::string& members) {
    std::string text = R"({"weight_map": {)";
    text += members;
    return text + "}}";
}

TEST(ShardIndex, Reads) {
    const auto index = parse_shard_index(
        R"({"metadata": {"total_size": 96, "total_parameters": 24, "x": {"y": [1]}, "z": null, "f": 1.5, "l": []},
            "weight_map": {"b": "s2", "a": "s1", "c": "s2"}, "more": {"weight_map": [1]}})",
        "i");
    ASSERT_TRUE(index.ok()) << index.error().to_string();
    EXPECT_EQ(index->shards, (std::vector<std::string>{"s1", "s2"}));
    ASSERT_EQ(index->entries.size(), 3U);
    EXPECT_EQ(index->entries[0].tensor, "b");
    EXPECT_EQ(index->entries[0].shard, 1U);
    EXPECT_EQ(index->entries[1].shard, 0U);
    EXPECT_EQ(index->total_size, 96U);
    EXPECT_EQ(index->metadata, (Pairs{{"index.total_size", "96"},
                                      {"index.total_parameters", "24"},
                                      {"index.x", "object"},
                                      {"index.z", "null"},
                                      {"index.f", "1.5"},
                                      {"index.l", "list"}}));
}

TEST(ShardIndex, Oddities) {
    EXPECT_FALSE(parse_shard_index(map_of(R"("a": "s")"), "i")->total_size.has_value());
    EXPECT_TRUE(parse_shard_index(R"({"metadata": null, "weight_map": {}})", "i").ok());
    EXPECT_TRUE(parse_shard_index(R"({"metadata": "x", "weight_map": {}})", "i").ok());
    EXPECT_TRUE(parse_shard_index(R"({"metadata": [1], "weight_map": {}})", "i").ok());
    EXPECT_EQ(parse_shard_index(R"({"metadata": {"total_size": 13476839424.0}, "weight_map": {}})", "i")
                  ->total_size,
              13476839424U);
    for (const char* size : {"1.5", "-1", "\"96\"", "1e300", "null"}) {
        SCOPED_TRACE(size);
        std::string text = R"({"metadata": {"total_size": )";
        text += size;
        const auto index = parse_shard_index(text + "}, \"weight_map\": {}}", "i");
        ASSERT_TRUE(index.ok()) << index.error().to_string();
        EXPECT_FALSE(index->total_size.has_value());
    }
    for (const char* shard :
         {"pytorch_model-00001-of-00003.safetensors", "shard_00.safetensors", "a..b", "..."}) {
        std::string members = R"("a": ")";
        members += shard;
        EXPECT_TRUE(parse_shard_index(map_of(members + "\""), "i").ok()) << shard;
    }
}

TEST(ShardIndex, Refuses) {
    const std::pair<std::string, const char*> cases[] = {
        {"", "no JSON"},
        {"{", "no JSON"},
        {"[]", "holds a list"},
        {"{}", "no weight_map"},
        {R"({"weight_map": []})", "weight_map is not an object"},
        {R"({"weight_map": "x"})", "weight_map is not an object"},
        {R"({"weight_map": null})", "weight_map is not an object"},
        {checkpoint::interrupted_index(), "a save into this folder was interrupted"},
        {R"({"interrupted_save": 1, "weight_map": []})", "weight_map is not an object"},
        {R"({"weight_map": {}, "weight_map": {}})", "weight_map appears twice"},
        {map_of(R"("a": 1)"), "names no file for tensor \"a\""},
        {map_of(R"("a": null)"), "names no file for tensor \"a\""},
        {map_of(R"("a": {"file": "s"})"), "names no file for tensor \"a\""},
        {map_of(R"("a": ["s"])"), "names no file for tensor \"a\""},
        {map_of(R"("a": "")"), "is empty"},
        {map_of(R"("a": "/etc/passwd")"), "is an absolute path"},
        {map_of(R"("a": "../s")"), "leads to another folder"},
        {map_of(R"("a": "x/../../s")"), "leads to another folder"},
        {map_of(R"("a": "x/s")"), "leads to another folder"},
        {map_of(R"("a": "..\\s")"), "leads to another folder"},
        {map_of(R"("a": "..")"), "is a folder"},
        {map_of(R"("a": ".")"), "is a folder"},
        {map_of(R"("a": "s\u0000")"), "zero byte"},
        {map_of(R"("a": "s", "a": "s")"), "names tensor \"a\" twice"},
        {map_of(R"("a": "s", "b": "s", "\u0061": "t")"), "names tensor \"a\" twice"},
        {std::string(100'000, '['), "holds a list"},
        {map_of(fmt::format(R"("a":{})", std::string(100'000, '['))), "names no file"},
        {fmt::format(R"({{"x":{})", std::string(100'000, '[')), "in one another"},
        {map_of("\"\xff\": \"s\""), "no UTF-8"},
    };
    for (const auto& [text, words] : cases) {
        SCOPED_TRACE(text.substr(0, 60));
        const auto index = parse_shard_index(text, "i.json");
        ASSERT_FALSE(index.ok());
        EXPECT_EQ(index.error().code, ErrorCode::invalid_argument);
        EXPECT_NE(index.error().message.find(words), std::string::npos) << index.error().to_string();
        EXPECT_TRUE(index.error().where.starts_with("i.json")) << index.error().where;
    }
}

// Two files of two tensors, 64 bytes, and their index.
class Sharded : public ::testing::Test {
protected:
    void SetUp() override {
        folder_.write("s1.safetensors", small_file({"a", "b"}));
        folder_.write("s2.safetensors", small_file({"c", "d"}));
    }
    std::string index(const std::string& members, const std::string& size = "64") {
        std::string text = R"({"metadata": {"total_size": )";
        text += size + "}, \"weight_map\": {" + members + "}}";
        return folder_.write("model.safetensors.index.json", text);
    }
    const std::string all_ =
        R"("a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors","d":"s2.safetensors")";
    Folder folder_;
};

TEST_F(Sharded, OpensByIndexAndByFolder) {
    const std::string path = index(all_);
    for (const std::string& way : {path, folder_.path(), folder_.path() + "/"}) {
        SCOPED_TRACE(way);
        const auto checkpoint = Checkpoint::open(way);
        ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
        EXPECT_EQ(checkpoint->files().size(), 2U);
        EXPECT_EQ(checkpoint->tensors().size(), 4U);
        EXPECT_EQ(checkpoint->bytes(), 64U);
        EXPECT_TRUE(checkpoint->notes().empty()) << checkpoint->notes().front();
        const TensorInfo* d = checkpoint->find("d");
        ASSERT_NE(d, nullptr);
        EXPECT_EQ(d->file, 1U);
        EXPECT_EQ(d->offset, checkpoint->files()[1].data_begin + 16);
    }
}

TEST_F(Sharded, AWrongTotalIsANote) {
    const auto wrong = Checkpoint::open(index(all_, "65"));
    ASSERT_TRUE(wrong.ok());
    ASSERT_EQ(wrong->notes().size(), 1U);
    EXPECT_EQ(wrong->notes()[0], "total_size of the index is 65, and the tensors have 64 bytes");
    Bytes files = 0;
    for (const CheckpointFile& file : wrong->files()) files += file.size;
    const auto summed = Checkpoint::open(index(all_, std::to_string(files)));
    ASSERT_TRUE(summed.ok());
    ASSERT_EQ(summed->notes().size(), 1U);
    EXPECT_NE(summed->notes()[0].find("bytes of the files"), std::string::npos);
}

TEST_F(Sharded, OtherFilesInTheFolderDoNotMatter) {
    index(all_);
    folder_.write("consolidated.safetensors", small_file({"a", "b", "c", "d"}));
    folder_.write("broken.safetensors", "x");
    folder_.write("model.safetensors", small_file({"z"}));
    const auto checkpoint = Checkpoint::open(folder_.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
    EXPECT_EQ(checkpoint->tensors().size(), 4U);
}

TEST_F(Sharded, LinksAreFollowed) {
    // As in a cache that keeps files by their hashes.
    std::filesystem::create_directory(folder_ / "blobs");
    std::filesystem::rename(folder_ / "s2.safetensors", folder_ / "blobs/0123abcd");
    std::filesystem::create_symlink("blobs/0123abcd", folder_ / "s2.safetensors");
    const auto checkpoint = Checkpoint::open(index(all_));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
    EXPECT_EQ(checkpoint->tensors().size(), 4U);
}

TEST_F(Sharded, TensorsThatTheIndexLeavesOut) {
    const std::string path = index(R"("a":"s1.safetensors","d":"s2.safetensors")", "32");
    const auto refused = Checkpoint::open(path);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().message, "the index does not name 2 of the files' tensors: \"b\", \"c\"");
    const auto checkpoint = Checkpoint::open(path, {.lenient = true});
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
    EXPECT_EQ(checkpoint->tensors().size(), 2U);
    EXPECT_EQ(checkpoint->find("b"), nullptr);
    ASSERT_EQ(checkpoint->notes().size(), 1U);
    EXPECT_EQ(checkpoint->notes()[0],
              "2 of the files' tensors are not in the index and left out: \"b\", \"c\"");
}

TEST_F(Sharded, ATensorInTwoFilesIsTheIndexsChoice) {
    folder_.write("s2.safetensors", small_file({"c", "d", "a"}));
    const auto checkpoint = Checkpoint::open(index(all_));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
    EXPECT_EQ(checkpoint->find("a")->file, 0U);
    EXPECT_EQ(checkpoint->tensors().size(), 4U);
    ASSERT_EQ(checkpoint->notes().size(), 1U);
    EXPECT_EQ(
        checkpoint->notes()[0],
        "1 of the tensors is in a second file too; each is read from the file that the index names: \"a\"");
}

TEST_F(Sharded, AnIndexOfNothingBesideFullFiles) {
    const std::string path = index("", "0");
    const auto refused = Checkpoint::open(path);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().message, "the index names no tensor, and \"s1.safetensors\" beside it holds 2");
    EXPECT_EQ(Checkpoint::open(path, {.lenient = true})->notes().size(), 1U);
    folder_.write("s1.safetensors", small_file({}));
    folder_.write("s2.safetensors", "broken");
    EXPECT_TRUE(Checkpoint::open(path).ok()) << "as a save of no tensors leaves it";
}

TEST_F(Sharded, TensorsThatAreNotWhereTheIndexSays) {
    const auto lacks = Checkpoint::open(index(all_ + R"(,"e":"s2.safetensors")"));
    ASSERT_FALSE(lacks.ok());
    EXPECT_EQ(lacks.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(lacks.error().message.find(R"(tensor "e" is in "s2.safetensors", which does not hold it)"),
              std::string::npos)
        << lacks.error().message;
    const auto swapped =
        Checkpoint::open(index(R"("a":"s2.safetensors","b":"s1.safetensors","c":"s1.safetensors")"));
    ASSERT_FALSE(swapped.ok());
    EXPECT_NE(swapped.error().message.find("tensor \"a\""), std::string::npos);
    EXPECT_NE(swapped.error().message.find("1 more"), std::string::npos);
}

TEST_F(Sharded, AMissingFileIsNotFound) {
    const std::string path = index(all_);
    std::filesystem::remove(folder_ / "s2.safetensors");
    const auto checkpoint = Checkpoint::open(path);
    ASSERT_FALSE(checkpoint.ok());
    EXPECT_EQ(checkpoint.error().code, ErrorCode::not_found);
    EXPECT_NE(checkpoint.error().message.find("s2.safetensors, which the index names"), std::string::npos);
}

TEST_F(Sharded, ABrokenFileIsNamed) {
    const std::string path = index(all_);
    folder_.write("s2.safetensors", "broken");
    const auto checkpoint = Checkpoint::open(path);
    ASSERT_FALSE(checkpoint.ok());
    EXPECT_EQ(checkpoint.error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(checkpoint.error().where, folder_ / "s2.safetensors");
}

TEST_F(Sharded, ManyFilesAreReadInOrder) {
    std::string members;
    for (int i = 0; i < 200; ++i) {
        const std::string name = std::to_string(1000 + i);
        folder_.write(name, small_file({fmt::format("x{}", name), fmt::format("y{}", name)}));
        for (const char* tensor : {"x", "y"}) {
            members += members.empty() ? "\"" : ",\"";
            members += tensor;
            members += name + "\":\"" + name + "\"";
        }
    }
    const auto checkpoint = Checkpoint::open(index(members, "6400"));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
    ASSERT_EQ(checkpoint->tensors().size(), 400U);
    for (std::size_t i = 0; i < 400; ++i) {
        const TensorInfo& tensor = checkpoint->tensors()[i];
        EXPECT_EQ(tensor.file, i / 2);
        EXPECT_EQ(tensor.name, fmt::format("{}{}", i % 2 == 0 ? "x" : "y", 1000 + i / 2));
        EXPECT_EQ(checkpoint->find(tensor.name), &tensor);
    }
    folder_.write("1150", "broken");
    folder_.write("1170", "broken");
    const auto broken = Checkpoint::open(folder_ / "model.safetensors.index.json");
    ASSERT_FALSE(broken.ok());
    EXPECT_EQ(broken.error().where, folder_ / "1150") << "the first, whichever thread is quicker";
}

}  // namespace
}  // namespace sidestep
