// Folders, and models in several files: which files are read, and what is said of those that lack.
#include <gtest/gtest.h>
#include <sidestep/checkpoint.hpp>

#include <fmt/format.h>

#include "checkpoint/part_names.hpp"
#include "tests/unit/checkpoint/gguf_files.hpp"

namespace sidestep {
namespace {

using checkpoint::absent_parts;
using checkpoint::parse_part_name;
using Names = std::vector<std::string>;

Names names_of(const Checkpoint& checkpoint) {
    Names names;
    for (const TensorInfo& tensor : checkpoint.tensors()) names.push_back(tensor.name);
    return names;
}

Checkpoint open(const std::string& path) {
    auto checkpoint = Checkpoint::open(path);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
    return checkpoint.ok() ? *checkpoint : *Checkpoint::open(Folder().write("none", small_file({})));
}

void expect_refused(const std::string& path, ErrorCode code, const Names& words) {
    const auto checkpoint = Checkpoint::open(path);
    ASSERT_FALSE(checkpoint.ok()) << path;
    EXPECT_EQ(checkpoint.error().code, code) << checkpoint.error().to_string();
    for (const std::string& word : words)
        EXPECT_NE(checkpoint.error().to_string().find(word), std::string::npos)
            << checkpoint.error().to_string();
}

TEST(PartNames, AreRead) {
    const auto part = parse_part_name("my-model-00002-of-000163.fp16.safetensors");
    ASSERT_TRUE(part.has_value());
    EXPECT_EQ(part->stem, "my-model");
    EXPECT_EQ(part->ending, ".fp16.safetensors");
    EXPECT_EQ(part->number, 2U);
    EXPECT_EQ(part->count, 163U);
    EXPECT_EQ(part->name_of(17), "my-model-00017-of-000163.fp16.safetensors");
    for (const char* name :
         {"model.safetensors", "model-00004-of-00003.safetensors", "model-00000-of-00000.gguf",
          "model-1-of-2.gguf", "model-00001-of-.gguf", "model00001-of-00002.gguf", "00001-of-00002.gguf",
          "-of-", "model-00001-of-9999999999999.gguf"})
        EXPECT_FALSE(parse_part_name(name).has_value()) << name;
}

TEST(PartNames, WhatIsAbsent) {
    EXPECT_EQ(absent_parts({"a-00001-of-00002.x", "a-00002-of-00002.x", "b.x"}), "");
    EXPECT_EQ(absent_parts({"a-00000-of-00002.x", "a-00001-of-00002.x"}), "");
    EXPECT_EQ(absent_parts({"a-00001-of-00003.x", "a-00003-of-00003.x"}), "\"a-00002-of-00003.x\"");
    EXPECT_EQ(absent_parts({"a-00001-of-00002.x", "b-00002-of-00002.x"}),
              "\"a-00002-of-00002.x\", \"b-00001-of-00002.x\"");
    EXPECT_EQ(absent_parts({"a-00002-of-999999999.x"}),
              "\"a-00001-of-999999999.x\", \"a-00003-of-999999999.x\", \"a-00004-of-999999999.x\" and "
              "999999995 more");
}

TEST(Folders, AMissingPartIsNotFound) {
    const Folder folder;
    folder.write("model-00001-of-00003.safetensors", small_file({"a"}));
    folder.write("model-00003-of-00003.safetensors", small_file({"c"}));
    expect_refused(folder.path(), ErrorCode::not_found, {"\"model-00002-of-00003.safetensors\""});
    folder.write("model-00002-of-00003.safetensors", small_file({"b"}));
    const Checkpoint whole = open(folder.path());
    EXPECT_EQ(names_of(whole), (Names{"a", "b", "c"}));
    EXPECT_TRUE(whole.notes().empty());
}

TEST(Folders, SomePartsHaveANoteOfTheOthers) {
    const Folder folder;
    Names paths;
    for (const char* part : {"1", "2", "3"})
        paths.push_back(
            folder.write(fmt::format("model-0000{}-of-00003.safetensors", part), small_file({part})));
    EXPECT_TRUE(Checkpoint::open(paths)->notes().empty());
    paths.erase(paths.begin() + 1);
    const Names notes = Checkpoint::open(paths)->notes();
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_NE(notes[0].find("not read"), std::string::npos) << notes[0];
    EXPECT_NE(notes[0].find("\"model-00002-of-00003.safetensors\""), std::string::npos) << notes[0];
}

TEST(Folders, APartAloneHasANote) {
    const Folder folder;
    const std::string path = folder.write("model-00001-of-00003.safetensors", small_file({"a"}));
    const Checkpoint part = open(path);
    ASSERT_EQ(part.notes().size(), 1U);
    EXPECT_NE(part.notes()[0].find("one of 3 files"), std::string::npos) << part.notes()[0];
    EXPECT_TRUE(open(folder.write("model-00001-of-00001.safetensors", small_file({"a"}))).notes().empty());
}

std::string index_of(const std::string& tensor, const std::string& file) {
    return fmt::format(R"({{"weight_map": {{"{}": "{}"}}}})", tensor, file);
}

TEST(Folders, TheOnlyIndexCountsWhateverItsName) {
    for (const char* name :
         {"diffusion_pytorch_model.safetensors.index.json", "model.safetensors.index.fp16.json"}) {
        SCOPED_TRACE(name);
        const Folder folder;
        folder.write("1.safetensors", small_file({"a"}));
        folder.write("2.safetensors", small_file({"a"}));
        folder.write(name, index_of("a", "2.safetensors"));
        const Checkpoint checkpoint = open(folder.path());
        ASSERT_EQ(checkpoint.files().size(), 1U);
        EXPECT_TRUE(checkpoint.files()[0].path.ends_with("/2.safetensors"));
        folder.write(name, index_of("a", "3.safetensors"));
        expect_refused(folder.path(), ErrorCode::not_found, {"3.safetensors, which the index names"});
    }
}

TEST(Folders, OfSeveralIndexesThatOfNoVariantCounts) {
    const Folder folder;
    folder.write("x.safetensors", small_file({"a"}));
    folder.write("x.fp16-1.safetensors", small_file({"a"}));
    folder.write("x.safetensors.index.fp16.json", index_of("a", "x.fp16-1.safetensors"));
    // Beside a whole model the variant's index is not a choice.
    expect_refused(folder.path(), ErrorCode::invalid_argument, {"\"a\"", "x.fp16-1.safetensors"});
    folder.write("x.safetensors.index.json", index_of("a", "x.safetensors"));
    EXPECT_TRUE(open(folder.path()).files()[0].path.ends_with("/x.safetensors"));
    EXPECT_TRUE(open(folder.path()).notes().empty());
    folder.write("y.safetensors.index.json", index_of("a", "x.safetensors"));
    expect_refused(folder.path(), ErrorCode::invalid_argument, {"\"a\""});
    folder.write("model.safetensors", small_file({"m"}));
    EXPECT_EQ(names_of(open(folder.path())), Names{"m"});
}

TEST(Folders, AModelBesideAnIndexThatLeavesItOutHasANote) {
    const Folder folder;
    folder.write("s.safetensors", small_file({"a"}));
    folder.write("model.safetensors", small_file({"a"}));
    folder.write("model.safetensors.index.json", index_of("a", "s.safetensors"));
    const Checkpoint left_out = open(folder.path());
    ASSERT_EQ(left_out.notes().size(), 1U);
    EXPECT_NE(left_out.notes()[0].find("model.safetensors is left out"), std::string::npos)
        << left_out.notes()[0];
    folder.write("model.safetensors.index.json", index_of("a", "model.safetensors"));
    EXPECT_TRUE(open(folder.path()).notes().empty());
}

// Part `number`, from 0, of `count`, with a tensor of its own; `tensors` in all.
std::string gguf_part(unsigned number, unsigned count, unsigned tensors) {
    GgufParts parts;
    parts.pairs = {gguf_pair("split.no", 2, number_bytes(number, 2)),
                   gguf_pair("split.count", 2, number_bytes(count, 2)),
                   gguf_pair("split.tensors.count", 5, number_bytes(tensors, 4))};
    if (number == 0) parts.pairs.push_back(gguf_pair("general.name", 8, gguf_text("large")));
    parts.tensors = {gguf_tensor(fmt::format("t{}", number), {8}, 0, 0)};
    parts.data = 32;
    return gguf_file(parts);
}

class SplitGguf : public ::testing::Test {
protected:
    void SetUp() override {
        for (unsigned i = 0; i < 3; ++i) folder_.write(name(i), gguf_part(i, 3, 3));
    }
    static std::string name(unsigned number) { return fmt::format("m-{:05}-of-00003.gguf", number + 1); }
    Folder folder_;
};

TEST_F(SplitGguf, IsOneModel) {
    for (const std::string& way : {folder_.path(), folder_ / name(0)}) {
        SCOPED_TRACE(way);
        const Checkpoint whole = open(way);
        EXPECT_EQ(names_of(whole), (Names{"t0", "t1", "t2"}));
        ASSERT_EQ(whole.files().size(), 3U);
        EXPECT_EQ(whole.tensors()[2].file, 2U);
        EXPECT_TRUE(whole.notes().empty()) << whole.notes()[0];
        EXPECT_EQ(whole.metadata().size(), 4U);
        EXPECT_EQ(whole.metadata()[3].second, "large");
    }
}

TEST_F(SplitGguf, AnotherPartAloneHasANote) {
    const Checkpoint part = open(folder_ / name(1));
    EXPECT_EQ(names_of(part), Names{"t1"});
    ASSERT_EQ(part.notes().size(), 1U);
    EXPECT_NE(part.notes()[0].find("one of 3 files"), std::string::npos) << part.notes()[0];
    // As in a cache that keeps files by their hashes.
    folder_.write("0123abcd", gguf_part(0, 3, 3));
    EXPECT_EQ(open(folder_ / "0123abcd").notes().size(), 1U);
}

TEST_F(SplitGguf, AMissingPartIsNotFound) {
    std::filesystem::remove(folder_ / name(1));
    for (const std::string& way : {folder_.path(), folder_ / name(0)})
        expect_refused(way, ErrorCode::not_found, {"\"" + name(1) + "\""});
    std::filesystem::remove(folder_ / name(0));
    expect_refused(folder_.path(), ErrorCode::not_found, {name(0), name(1)});
}

TEST_F(SplitGguf, PartsHaveToFit) {
    folder_.write(name(2), gguf_part(1, 3, 3));
    expect_refused(folder_.path(), ErrorCode::invalid_argument, {name(2), "not number 3 of 3"});
    folder_.write(name(2), gguf_part(2, 4, 3));
    expect_refused(folder_.path(), ErrorCode::invalid_argument, {name(2), "not number 3 of 3"});
    folder_.write(name(2), gguf_part(2, 3, 3));
    folder_.write(name(0), gguf_part(0, 3, 4));
    expect_refused(folder_.path(), ErrorCode::invalid_argument, {"3 tensors", "first says 4"});
    folder_.write(name(0), gguf_part(0, 60000, 3));
    expect_refused(folder_.path(), ErrorCode::invalid_argument, {"one of 60000", "its name says 3"});
    GgufParts plain;
    plain.tensors = {gguf_tensor("t", {8}, 0, 0)};
    plain.data = 32;
    folder_.write(name(0), gguf_file(plain));
    expect_refused(folder_.path(), ErrorCode::invalid_argument, {"3 GGUF files"});
    folder_.write("other.gguf", gguf_file(plain));
    expect_refused(folder_.path(), ErrorCode::invalid_argument, {"4 GGUF files"});
}

}  // namespace
}  // namespace sidestep
