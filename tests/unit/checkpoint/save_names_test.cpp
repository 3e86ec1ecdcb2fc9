// The names of saved files and of what tells of them: a save that ends in between leaves no mixture that loads.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <sidestep/sidestep.hpp>
#include "checkpoint/save_closing.hpp"
#include "checkpoint/shard_index.hpp"
#include "driver/replaced_file.hpp"
#include "tests/contents.hpp"
#include "tests/unit/checkpoint/checkpoint_files.hpp"

namespace sidestep {
namespace {

namespace fs = std::filesystem;
constexpr const char* index_name = "model.safetensors.index.json";

class SaveNames : public testing::Test {
protected:
    // Two tensors of one byte, in a file each.
    Result<Receipt> save_shards(char content) {
        SaveOptions options;
        options.shard_bytes = 1;
        options.manifest = true;
        return context.save(tensors(content), path(), options).wait();
    }
    Result<Receipt> save_single(char content, const std::string& name = "model.safetensors") {
        return context.save(tensors(content), folder / ("model/" + name)).wait();
    }
    std::vector<TensorToSave> tensors(char content) {
        bytes.push_back(std::make_unique<std::string>(2, content));
        char* const at = bytes.back()->data();
        return {{"a", Dtype::u8, {1}, Buffer::host(at, 1)}, {"b", Dtype::u8, {1}, Buffer::host(at + 1, 1)}};
    }

    std::string path() const { return folder / "model"; }
    std::string index() const { return path() + "/" + index_name; }
    std::string manifest() const { return path() + ".manifest.json"; }
    static std::string shard(int number) { return fmt::format("model-{:05}-of-00002.safetensors", number); }

    // The contents of the tensors, sorted; the words of the refusal where there is one.
    std::string loaded() const {
        const auto checkpoint = Checkpoint::open(path());
        if (!checkpoint) return checkpoint.error().to_string();
        std::string content;
        for (const TensorInfo& tensor : checkpoint->tensors())
            content += test::get(checkpoint->files()[tensor.file].path).substr(tensor.offset, tensor.bytes);
        return content;
    }
    void SetUp() override { fs::create_directory(path()); }

    Folder folder;
    std::vector<std::unique_ptr<std::string>> bytes;
    Context context = std::move(Context::open({"dgx-h100"})).value();
};

// What a save does up to the moment at which the files get their names; then, in the tests, it is no more.
checkpoint::SaveClosing begun(const std::vector<TensorToSave>& tensors, const std::string& path) {
    SaveOptions options;
    options.shard_bytes = 1;
    options.manifest = true;
    options.sync_replaced = false;
    const auto plan = checkpoint::plan_save(tensors, path, options);
    EXPECT_TRUE(plan);
    checkpoint::SaveClosing closing(*plan, options);
    const auto ready = closing.before_names();
    EXPECT_TRUE(ready) << ready.error().to_string();
    return closing;
}

TEST_F(SaveNames, WhileFilesGetTheirNamesTheFolderIsRefused) {
    for (const bool first : {true, false}) {
        SCOPED_TRACE(first);
        std::optional<checkpoint::SaveClosing> closing(begun(tensors('1'), path()));
        if (first) {
            EXPECT_NE(loaded().find("a save into this folder was interrupted"), std::string::npos)
                << loaded();
            // What other libraries do: they ask for the values, or the keys, of the map.
            const auto mark = nlohmann::json::parse(test::get(index()));
            EXPECT_TRUE(mark.at("weight_map").is_null());
        } else {
            EXPECT_EQ(loaded(), "22") << "the earlier checkpoint";
        }
        EXPECT_FALSE(fs::exists(manifest()));
        const auto refused = save_shards('2');
        ASSERT_FALSE(refused) << "two at once may leave a mixture under one index";
        EXPECT_NE(refused.error().message.find("another save"), std::string::npos)
            << refused.error().to_string();
        closing.reset();  // as with the end of its process
        ASSERT_TRUE(save_shards('2'));
        EXPECT_EQ(loaded(), "22");
        EXPECT_TRUE(fs::exists(manifest()));
    }
}

// What a kill leaves at each moment: the earlier checkpoint, until the index leads to the new one. The next save, or repair(),
// leaves nothing of it.
TEST_F(SaveNames, AKillBetweenTheNamesLeavesTheEarlierCheckpoint) {
    const std::vector<std::string> names{shard(1), shard(2), index_name};
    const auto left = [&] {
        std::set<std::string> found;
        for (const auto& entry : fs::directory_iterator(path())) found.insert(entry.path().filename());
        return found;
    };
    for (const bool repaired : {false, true}) {
        for (const std::size_t renamed : {0u, 1u, 2u}) {
            SCOPED_TRACE(renamed);
            ASSERT_TRUE(save_shards('1'));
            ASSERT_EQ(left(), std::set<std::string>(names.begin(), names.end()));
            {
                const auto closing = begun(tensors('2'), path());
                // A save renames whole files: new ones, not the same with other content.
                for (std::size_t file = 0; file < renamed; ++file) {
                    folder.write("model/new", "x");
                    fs::rename(folder / "model/new", path() + "/" + names[file]);
                }
            }
            EXPECT_EQ(loaded(), "11");
            EXPECT_EQ(left().size(), 5u);
            if (repaired) {
                const auto done = repair(path());
                ASSERT_TRUE(done) << done.error().to_string();
                ASSERT_EQ(done->size(), 3u);
                EXPECT_EQ(loaded(), "11");
                EXPECT_TRUE(repair(path())->empty());
            } else {
                ASSERT_TRUE(save_shards('3'));
                EXPECT_EQ(loaded(), "33");
            }
            EXPECT_EQ(left(), std::set<std::string>(names.begin(), names.end()));
        }
    }
}

// The new file of one name is there, and the process is no more. Of a link what it leads to was replaced; with a file that was
// missing the earlier checkpoint was not whole.
TEST_F(SaveNames, AKillLeavesNoMixtureWhereAFileIsALinkOrMissing) {
    const std::string file = path() + "/" + shard(1), blob = folder / "blob", other = folder / "other";
    fs::create_directory(other);
    SaveOptions options;
    options.shard_bytes = 1;
    ASSERT_TRUE(context.save(tensors('2'), other, options).wait());
    const std::string fresh = test::get(other + "/" + shard(1));
    for (const bool is_link : {true, false}) {
        SCOPED_TRACE(is_link);
        ASSERT_TRUE(save_shards('1'));
        fs::rename(file, blob);
        if (is_link) fs::create_symlink(blob, file);
        {
            const auto closing = begun(tensors('2'), path());
            auto written = driver::ReplacedFile::begin(file);
            ASSERT_TRUE(written);
            ASSERT_TRUE(driver::write_range(written->fd(), 0, fresh.data(), fresh.size(), file));
            ASSERT_TRUE(written->commit(false));
        }
        const std::string interrupted = "a save into this folder was interrupted";
        EXPECT_NE(loaded().find(is_link ? "11" : interrupted), std::string::npos) << loaded();
        EXPECT_EQ(repair(path()).ok(), is_link);
        EXPECT_NE(loaded().find(is_link ? "11" : interrupted), std::string::npos) << loaded();
        EXPECT_EQ(fs::is_symlink(file), is_link);
        ASSERT_TRUE(save_shards('3'));
        EXPECT_EQ(loaded(), "33");
        fs::remove(blob);
        fs::remove(file);
    }
}

// What is being written under one of the names meanwhile is nothing of repair()'s.
TEST_F(SaveNames, ARepairLeavesFilesThatAreBeingWritten) {
    ASSERT_TRUE(save_shards('1'));
    {
        const auto closing = begun(tensors('2'), path());
        folder.write("model/new", "x");
        fs::rename(folder / "model/new", path() + "/" + shard(1));
    }
    auto written = driver::ReplacedFile::begin(path() + "/" + shard(1), false);
    ASSERT_TRUE(written) << written.error().to_string();
    ASSERT_TRUE(repair(path()));
    EXPECT_EQ(loaded(), "11");
    EXPECT_TRUE(written->commit(false)) << "its file was taken away";
}

// Who takes the lock's file in turn is named; who may only read the folder keeps nobody out.
TEST_F(SaveNames, AReaderOfTheFolderKeepsNobodyOut) {
    ASSERT_TRUE(save_shards('1'));
    const int reader = ::open(path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ASSERT_EQ(::flock(reader, LOCK_EX | LOCK_NB), 0);
    EXPECT_TRUE(save_shards('2'));
    ::close(reader);
    const auto closing = begun(tensors('3'), path());
    const auto refused = save_shards('4');
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find(fmt::format("process {} holds", ::getpid())), std::string::npos)
        << refused.error().to_string();
}

// The handle of a save that failed keeps nobody out.
TEST_F(SaveNames, AnotherSaveMayFollowOneThatFailed) {
    SaveOptions options;
    options.shard_bytes = 1;
    Transfer blocked = [&] {
        const auto closing = begun(tensors('1'), path());
        Transfer second = context.save(tensors('2'), path(), options);
        EXPECT_FALSE(second.wait());
        return second;
    }();
    EXPECT_TRUE(save_shards('3'));
    EXPECT_EQ(loaded(), "33");
}

TEST_F(SaveNames, WithoutAFirstNameTheEarlierIndexIsPutBack) {
    auto none = begun(tensors('1'), path());
    ASSERT_TRUE(none.without_names());
    EXPECT_FALSE(fs::exists(index()));
    EXPECT_FALSE(fs::exists(manifest()));
    ASSERT_TRUE(save_shards('1'));
    const std::string index_before = test::get(index());
    const std::string manifest_before = test::get(manifest());
    auto closing = begun(tensors('2'), path());
    EXPECT_NE(test::get(index()), index_before);
    ASSERT_TRUE(closing.without_names());
    EXPECT_EQ(test::get(index()), index_before);
    EXPECT_EQ(test::get(manifest()), manifest_before);
    EXPECT_EQ(loaded(), "11");
}

// A mount point takes no other file's name.
TEST_F(SaveNames, ASaveThatFailsBetweenTheNames) {
    ASSERT_TRUE(save_shards('1'));
    for (const int number : {1, 2}) {
        SCOPED_TRACE(number);
        const std::string file = path() + "/" + shard(number);
        if (::geteuid() != 0 || ::mount(file.c_str(), file.c_str(), nullptr, MS_BIND, nullptr) != 0)
            GTEST_SKIP() << "a file cannot be mounted: " << std::strerror(errno);
        testing::internal::CaptureStderr();
        const auto saved = save_shards('2');
        EXPECT_FALSE(saved);
        EXPECT_NE(testing::internal::GetCapturedStderr().find("can have no second name"), std::string::npos);
        const std::string after = loaded();
        ::umount2(file.c_str(), MNT_DETACH);
        if (number == 1) {
            EXPECT_EQ(after, "11") << "no file has got its name";
            EXPECT_TRUE(fs::exists(manifest()));
        } else {
            EXPECT_NE(after.find("interrupted"), std::string::npos)
                << "a mount point has no second name: " << after;
            EXPECT_FALSE(fs::exists(manifest()));
        }
    }
    ASSERT_TRUE(save_shards('3'));
    EXPECT_EQ(loaded(), "33");
}

TEST_F(SaveNames, AModelInOneFileTakesThePlaceOfAnEarlierIndex) {
    ASSERT_TRUE(save_shards('1'));
    const auto other = save_single('2', "other.safetensors");
    ASSERT_TRUE(other);
    EXPECT_TRUE(other->notes.empty());
    EXPECT_EQ(loaded(), "11") << "another file is another model";
    const auto saved = save_single('2');
    ASSERT_TRUE(saved) << saved.error().to_string();
    EXPECT_EQ(loaded(), "22");
    EXPECT_FALSE(fs::exists(index()));
    ASSERT_EQ(saved->notes.size(), 1U);
    EXPECT_NE(saved->notes[0].find("removed " + index()), std::string::npos) << saved->notes[0];
    EXPECT_TRUE(save_single('3')->notes.empty());
    EXPECT_EQ(loaded(), "33");
    // The other way round the index is read first, by this library.
    const auto again = save_shards('4');
    ASSERT_TRUE(again);
    EXPECT_EQ(loaded(), "44");
    ASSERT_EQ(again->notes.size(), 1U);
    EXPECT_NE(again->notes[0].find("model.safetensors is none of the files saved"), std::string::npos)
        << again->notes[0];
}

TEST_F(SaveNames, AnIndexThatNamesTheFileStays) {
    folder.write(std::string("model/") + index_name,
                 R"({"weight_map": {"a": "model.safetensors", "b": "model.safetensors"}})");
    const auto saved = save_single('1');
    ASSERT_TRUE(saved);
    EXPECT_TRUE(saved->notes.empty());
    EXPECT_TRUE(fs::exists(index()));
    EXPECT_EQ(loaded(), "11");
    // That of an interrupted save names nothing.
    folder.write(std::string("model/") + index_name, checkpoint::interrupted_index());
    EXPECT_EQ(save_single('3')->notes.size(), 1U);
    EXPECT_EQ(loaded(), "33");
}

}  // namespace
}  // namespace sidestep
