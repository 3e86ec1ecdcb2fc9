// Checkpoints in files: what a path may be, picking, words, and manifests.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sidestep/checkpoint.hpp>

#include <atomic>
#include <nlohmann/json.hpp>

#include "checkpoint/files_reader.hpp"
#include "checkpoint/manifest_reader.hpp"
#include "tests/unit/checkpoint/checkpoint_files.hpp"

namespace sidestep {
namespace {

std::vector<std::string> names_of(const Checkpoint& checkpoint) {
    std::vector<std::string> names;
    for (const TensorInfo& tensor : checkpoint.tensors()) names.push_back(tensor.name);
    return names;
}

TEST(Checkpoint, WhatAPathMayBe) {
    const Folder folder;
    const std::string path = folder.write("x.safetensors", small_file({"a"}));
    EXPECT_TRUE(Checkpoint::open(path).ok());
    std::filesystem::create_symlink(path, folder / "0123abcd");
    EXPECT_TRUE(Checkpoint::open(folder / "0123abcd").ok()) << "whatever the name";
    // A folder: every file by name where none is called model.safetensors.
    folder.write("b.safetensors", small_file({"b"}));
    folder.write("._b.safetensors", "hidden");
    folder.write("notes.txt", "text");
    const auto all = Checkpoint::open(folder.path());
    ASSERT_TRUE(all.ok()) << all.error().to_string();
    EXPECT_EQ(names_of(*all), (std::vector<std::string>{"b", "a"}));
    folder.write("model.safetensors", small_file({"m"}));
    EXPECT_EQ(names_of(*Checkpoint::open(folder.path())), std::vector<std::string>{"m"});
}

TEST(Checkpoint, WhatAPathMayNotBe) {
    const Folder folder;
    EXPECT_EQ(Checkpoint::open(folder / "absent").error().code, ErrorCode::not_found);
    EXPECT_EQ(Checkpoint::open("").error().code, ErrorCode::not_found);
    const auto empty = Checkpoint::open(folder.path());
    EXPECT_EQ(empty.error().code, ErrorCode::not_found);
    EXPECT_NE(empty.error().message.find("no *.safetensors and no *.gguf"), std::string::npos);
    ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
    const auto pipe = Checkpoint::open(folder / "pipe");
    EXPECT_EQ(pipe.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(pipe.error().message.find("is a pipe"), std::string::npos);
    std::filesystem::create_directory(folder / "x.safetensors");
    EXPECT_FALSE(Checkpoint::open(folder.path()).ok());
}

// What lies in a checkpoint's place is named as what it is.
TEST(Checkpoint, OtherFilesAreNamed) {
    const Folder folder;
    const std::pair<std::string, const char*> cases[] = {
        {"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n", "Git LFS"},
        {"<!DOCTYPE html><html></html>", "HTML"},
        {"<html><body>404</body></html>", "HTML"},
        {std::string("PK\3\4\0\0\x08\x08\0\0\0\0", 12), "zip archive"},
        {std::string("\x80\x02\x8a\x0a", 4) + "lüF.", "pickle"},
        {"\x89HDF\r\n\x1a\n", "HDF5"},
    };
    for (const auto& [text, what] : cases)
        for (const char* name : {"model.safetensors", "model.gguf"}) {
            const auto opened = Checkpoint::open(folder.write(name, text));
            ASSERT_FALSE(opened) << what;
            EXPECT_EQ(opened.error().code, ErrorCode::invalid_argument);
            EXPECT_NE(opened.error().message.find(what), std::string::npos) << opened.error().to_string();
            EXPECT_FALSE(opened.error().hint.empty());
        }
    // A header that is as long as these bytes say.
    const std::string header = std::string("PK\3\4\0\0\0\0", 8) + "{";
    EXPECT_EQ(Checkpoint::open(folder.write("x", header)).error().message.find("zip"), std::string::npos);
}

TEST(FilesOfACheckpoint, AreReadWholeOrNotAtAll) {
    const Folder folder;
    auto open = checkpoint::open_regular(folder.write("f", "0123456789"));
    ASSERT_TRUE(open.ok());
    EXPECT_EQ(*checkpoint::read_text(*open, 3, 4), "3456");
    EXPECT_EQ(*checkpoint::read_text(*open, 10, 0), "");
    const auto beyond = checkpoint::read_text(*open, 8, 4);
    ASSERT_FALSE(beyond.ok()) << "as where a file shrinks while it is read";
    EXPECT_EQ(beyond.error().code, ErrorCode::end_of_file);
    EXPECT_NE(beyond.error().message.find("ends at byte 10"), std::string::npos) << beyond.error().message;
    // What a load compares: the file, not its name, and not what it holds now.
    const std::uint64_t before = open->facts.version;
    EXPECT_EQ(driver::file_facts(folder / "f").value()->version, before);
    std::filesystem::rename(folder / "f", folder / "g");
    folder.write("f", "0123456789");
    EXPECT_NE(driver::file_facts(folder / "f").value()->version, before);
}

TEST(Checkpoint, ATensorInTwoFilesIsRefused) {
    const Folder folder;
    folder.write("1.safetensors", small_file({"a", "b"}));
    folder.write("2.safetensors", small_file({"c", "a"}));
    const auto checkpoint = Checkpoint::open(folder.path());
    ASSERT_FALSE(checkpoint.ok());
    EXPECT_EQ(checkpoint.error().code, ErrorCode::invalid_argument);
    for (const char* words : {"\"a\"", "1.safetensors", "2.safetensors"})
        EXPECT_NE(checkpoint.error().message.find(words), std::string::npos) << checkpoint.error().message;
}

TEST(Checkpoint, SeveralFilesGivenOneByOne) {
    const Folder folder;
    const std::string a = folder.write("z", small_file({"a", "b"}));
    const std::string b = folder.write("y", small_file({"c"}));
    const auto checkpoint = Checkpoint::open(std::vector{a, b});
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
    EXPECT_EQ(names_of(*checkpoint), (std::vector<std::string>{"a", "b", "c"})) << "in the order given";
    EXPECT_EQ(checkpoint->files()[1].path, b);
    EXPECT_EQ(checkpoint->find("c")->file, 1u);
    EXPECT_EQ(nlohmann::json::parse(checkpoint->to_json())["path"], a + " and 1 more");
    EXPECT_EQ(names_of(*Checkpoint::open(std::vector{b})), std::vector<std::string>{"c"});
    folder.write("model.safetensors", small_file({"m"}));
    EXPECT_EQ(names_of(*Checkpoint::open(std::vector{folder.path()})), std::vector<std::string>{"m"});
}

TEST(Checkpoint, SeveralFilesThatMakeNoSense) {
    const Folder folder;
    const std::string a = folder.write("a", small_file({"a"}));
    const auto refused = [](const std::vector<std::string>& paths, ErrorCode code, const std::string& words) {
        const auto checkpoint = Checkpoint::open(paths);
        ASSERT_FALSE(checkpoint.ok());
        EXPECT_EQ(checkpoint.error().code, code);
        EXPECT_NE(checkpoint.error().message.find(words), std::string::npos) << checkpoint.error().message;
    };
    refused({}, ErrorCode::invalid_argument, "no path");
    refused({a, folder / "b"}, ErrorCode::not_found, folder / "b");
    refused({a, folder.path()}, ErrorCode::invalid_argument, "a folder among several");
    refused({a, folder.write("i.json", "{}")}, ErrorCode::invalid_argument, "an index among several");
    refused({a, folder.write("again", small_file({"b", "a"}))}, ErrorCode::invalid_argument, "again");
    refused({a, a}, ErrorCode::invalid_argument, "\"a\"");
    refused({a, folder.write("broken", "short")}, ErrorCode::invalid_argument, "");
}

TEST(Checkpoint, FilesAreComparedWithWhatWasOpened) {
    const Folder folder;
    const std::string path = folder.write("m", small_file({"a", "b"}));
    const auto checkpoint = Checkpoint::open(path);
    ASSERT_TRUE(checkpoint.ok());
    EXPECT_TRUE(checkpoint->check_file(0).ok());
    EXPECT_EQ(checkpoint->check_file(1).error().code, ErrorCode::invalid_argument);
    // The clock of the file system may stand still for some milliseconds.
    const auto before = driver::file_facts(path).value()->version;
    while (driver::file_facts(path).value()->version == before)
        std::filesystem::create_hard_link(path, folder / "l"), std::filesystem::remove(folder / "l");
    EXPECT_TRUE(checkpoint->check_file(0).ok()) << "a link was made, nobody wrote";
    const auto written = std::filesystem::last_write_time(path);
    while (std::filesystem::last_write_time(path) == written) folder.write("m", small_file({"a", "c"}));
    EXPECT_EQ(checkpoint->check_file(0).error().code, ErrorCode::mismatch);
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
    const auto shorter = checkpoint->check_file(0);
    EXPECT_EQ(shorter.error().code, ErrorCode::end_of_file);
    EXPECT_NE(shorter.error().message.find("tensor b needs"), std::string::npos) << shorter.error().message;
    std::filesystem::remove(path);
    EXPECT_EQ(checkpoint->check_file(0).error().code, ErrorCode::not_found);
}

TEST(Checkpoint, Only) {
    const Folder folder;
    const auto all = Checkpoint::open(folder.write("m", small_file({"a.w", "a.b", "c.w"})));
    ASSERT_TRUE(all.ok());
    const auto some = all->only({"a.*", "!*.b"});
    ASSERT_TRUE(some.ok()) << some.error().to_string();
    EXPECT_EQ(names_of(*some), std::vector<std::string>{"a.w"});
    EXPECT_EQ(some->bytes(), 16U);
    EXPECT_EQ(some->find("c.w"), nullptr);
    EXPECT_EQ(some->find("a.w"), &some->tensors()[0]);
    EXPECT_EQ(some->files().size(), 1U);
    EXPECT_EQ(all->tensors().size(), 3U);
    EXPECT_EQ(all->only({"nothing*"}).error().code, ErrorCode::not_found);
    const auto typo = all->only({"a.w", "typo", "c.*"});
    ASSERT_FALSE(typo.ok());
    EXPECT_EQ(typo.error().code, ErrorCode::not_found);
    EXPECT_NE(typo.error().message.find("\"typo\""), std::string::npos) << typo.error().message;
    const auto noted = all->only({"a.*", "b.*", "!d"});
    ASSERT_TRUE(noted.ok());
    ASSERT_EQ(noted->notes().size(), 1U);
    EXPECT_EQ(noted->notes()[0], "no tensor fits the patterns \"b.*\", \"!d\"");
    EXPECT_TRUE(all->only({"a.*", "a.w", "!c.w"})->notes().empty());
    EXPECT_EQ(all->only({"["}).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(all->only({}).error().code, ErrorCode::invalid_argument);
}

TEST(Checkpoint, Words) {
    const Folder folder;
    const std::string json = R"({"__metadata__":{"format":"pt"},)"
                             R"("a\n":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},)"
                             R"("long.name":{"dtype":"BF16","shape":[2,1],"data_offsets":[12,16]}})";
    const std::string path = folder.write("m.safetensors", safetensors_file(json, 20));
    CheckpointOptions options;
    options.lenient = true;
    const auto checkpoint = Checkpoint::open(path, options);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
    EXPECT_EQ(checkpoint->summary(), "2 tensors, 16 B in 1 file: F32 75 %, BF16 25 %");
    std::string note = "note: ";
    note += checkpoint->notes()[0] + "\n";
    EXPECT_EQ(checkpoint->to_text(),
              "name       type  shape   bytes  file\n"
              "a\\x0a      F32   [3]        12  m.safetensors\n"
              "long.name  BF16  [2, 1]      4  m.safetensors\n"
              "\n"
              "2 tensors, 16 B in 1 file: F32 75 %, BF16 25 %\n"
              "metadata:\n"
              "  format: pt\n" +
                  note);
    const auto object = nlohmann::json::parse(checkpoint->to_json());
    EXPECT_EQ(object["version"], 1);
    EXPECT_EQ(object["path"], path);
    EXPECT_EQ(object["bytes"], 16);
    EXPECT_EQ(object["types"][1], (nlohmann::json{{"type", "BF16"}, {"bytes", 4}}));
    EXPECT_EQ(object["files"][0]["data_begin"], 8 + json.size());
    const nlohmann::json tensor = {{"name", "a\n"}, {"type", "F32"}, {"dtype", "F32"},
                                   {"shape", {3}},  {"file", 0},     {"offset", 8 + json.size()},
                                   {"bytes", 12}};
    EXPECT_EQ(object["tensors"][0], tensor);
    EXPECT_EQ(object["metadata"]["format"], "pt");
    EXPECT_EQ(object["notes"].size(), 1U);
    const auto none = Checkpoint::open(folder.write("none", safetensors_file("{}", 0)));
    ASSERT_TRUE(none.ok());
    EXPECT_EQ(none->summary(), "0 tensors, 0 B in 1 file");
    EXPECT_TRUE(nlohmann::json::parse(none->to_json())["tensors"].empty());
}

// Two files, one of which has several blocks.
class ManifestOfFiles : public ::testing::Test {
protected:
    static constexpr std::size_t elements = 1'000'000;

    void SetUp() override {
        std::string header = "{";
        for (std::uint64_t i = 0; i < 3; ++i) {
            header += i == 0 ? "" : ",";
            header += f32_entry(std::string("large.") + std::to_string(i), i * elements * 4, elements);
        }
        large_ = folder_.write("1.safetensors", safetensors_file(header + "}", 3 * elements * 4));
        folder_.write("2.safetensors", small_file({"small.a", "small.b"}));
        std::filesystem::create_directory(folder_ / "sums");
    }

    Checkpoint open() const {
        auto checkpoint = Checkpoint::open(folder_.path());
        EXPECT_TRUE(checkpoint.ok());
        return *checkpoint;
    }

    // Changes one byte of a file.
    void spoil(const std::string& path, std::uint64_t offset) const {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(static_cast<std::streamoff>(offset));
        file.put('y');
        ASSERT_TRUE(file.flush());
    }

    Folder folder_;
    std::string large_;
    const std::string sums_ = folder_ / "sums/m.json";
};

TEST_F(ManifestOfFiles, IsWrittenAndHolds) {
    Bytes seen = 0;
    const auto written = open().write_manifest(sums_, [&](Bytes done, Bytes total) {
        EXPECT_LE(done, total);
        seen = total;
        return true;
    });
    ASSERT_TRUE(written.ok()) << written.error().to_string();
    Bytes files = 0;
    const Checkpoint checkpoint = open();
    for (const CheckpointFile& file : checkpoint.files()) files += file.size;
    EXPECT_EQ(written->bytes, files);
    EXPECT_EQ(written->blocks, 13U);  // 12 MB and some bytes, and one small file
    EXPECT_TRUE(seen == 0 || seen == files);
    const auto manifest = checkpoint::read_manifest(sums_);
    ASSERT_TRUE(manifest.ok()) << manifest.error().to_string();
    ASSERT_EQ(manifest->files.size(), 2U);
    EXPECT_EQ(manifest->files[0].name, "1.safetensors");
    EXPECT_EQ(manifest->files[0].blocks.size(), 12U);
    const auto verified = checkpoint.verify_manifest(sums_);
    ASSERT_TRUE(verified.ok()) << verified.error().to_string();
    EXPECT_EQ(verified->blocks, 13U);
}

TEST_F(ManifestOfFiles, NamesWhatDiffers) {
    ASSERT_TRUE(open().write_manifest(sums_).ok());
    spoil(large_, 3'900'000);
    spoil(large_, 9'000'000);
    spoil(large_, 9'000'001);
    const auto verified = open().verify_manifest(sums_);
    ASSERT_FALSE(verified.ok());
    EXPECT_EQ(verified.error().code, ErrorCode::mismatch);
    EXPECT_EQ(verified.error().where, large_);
    for (const char* words : {"block 3 of", "bytes 3145728 to 4194304", "tensor \"large.0\", \"large.1\"",
                              "1 more blocks differ"})
        EXPECT_NE(verified.error().message.find(words), std::string::npos) << verified.error().message;
}

TEST_F(ManifestOfFiles, NamesFilesThatDiffer) {
    ASSERT_TRUE(open().write_manifest(sums_).ok());
    folder_.write("2.safetensors", small_file({"small.a"}));
    const auto size = open().verify_manifest(sums_);
    ASSERT_FALSE(size.ok());
    EXPECT_EQ(size.error().code, ErrorCode::mismatch);
    EXPECT_NE(size.error().message.find("by the manifest"), std::string::npos);
    folder_.write("3.safetensors", small_file({"more"}));
    std::filesystem::remove(folder_ / "2.safetensors");
    EXPECT_NE(open().verify_manifest(sums_).error().message.find("no checksums of 3.safetensors"),
              std::string::npos);
    EXPECT_EQ(open().verify_manifest(folder_ / "absent").error().code, ErrorCode::not_found);
}

TEST_F(ManifestOfFiles, RefusesAFileThatChangedSinceItWasOpened) {
    const Checkpoint checkpoint = open();
    ASSERT_TRUE(checkpoint.write_manifest(sums_).ok());
    folder_.write("2.safetensors", small_file({"small.a", "small.c"}));
    const auto verified = checkpoint.verify_manifest(sums_);
    ASSERT_FALSE(verified.ok());
    EXPECT_NE(verified.error().message.find("has changed since it was opened"), std::string::npos);
}

TEST_F(ManifestOfFiles, CanBeStopped) {
    // It may be done before anybody asks.
    const auto stopped = open().write_manifest(sums_, [](Bytes, Bytes) { return false; });
    if (stopped.ok()) {
        EXPECT_TRUE(std::filesystem::exists(sums_));
    } else {
        EXPECT_EQ(stopped.error().code, ErrorCode::cancelled);
        EXPECT_FALSE(std::filesystem::exists(sums_));
    }
}

TEST_F(ManifestOfFiles, LeavesNothingWhereItCannotBeWritten) {
    const auto written = open().write_manifest(folder_ / "nowhere/m.json");
    ASSERT_FALSE(written.ok());
    EXPECT_EQ(written.error().code, ErrorCode::not_found);
}

// JSON is UTF-8: the file would not be found again by the name that is written.
TEST_F(ManifestOfFiles, RefusesAFileWhoseNameIsNoUtf8) {
    const std::string odd = folder_.write("caf\xe9.safetensors", small_file({"odd"}));
    const auto written = Checkpoint::open(odd)->write_manifest(sums_);
    ASSERT_FALSE(written.ok());
    EXPECT_EQ(written.error().code, ErrorCode::unsupported);
    EXPECT_NE(written.error().message.find("\"caf\\xe9.safetensors\""), std::string::npos)
        << written.error().message;
    EXPECT_FALSE(std::filesystem::exists(sums_));
}

TEST_F(ManifestOfFiles, TakesTheNameOfNoFileOfTheCheckpoint) {
    const Checkpoint checkpoint = open();
    const std::string file = checkpoint.files().front().path;
    std::filesystem::create_symlink(file, folder_ / "link");
    // Opened by the folder, whose index names one of the files.
    const std::string index =
        folder_.write("model.safetensors.index.json",
                      R"({"weight_map": {"small.a": "2.safetensors", "small.b": "2.safetensors"}})");
    for (const std::string& target : {file, folder_ / "link", index}) {
        const auto written = (target == index ? open() : checkpoint).write_manifest(target);
        ASSERT_FALSE(written.ok()) << target;
        EXPECT_EQ(written.error().code, ErrorCode::invalid_argument);
    }
    EXPECT_TRUE(Checkpoint::open(file).ok());
}

}  // namespace
}  // namespace sidestep
