// Checkpoints that lie on a node, loaded to places of this machine.
#include <sidestep/checkpoint.hpp>
#include <sidestep/load.hpp>
#include <sidestep/save.hpp>

#include <algorithm>

#include "tests/network/nodes.hpp"

namespace sidestep {
namespace {

using test::Nodes;

class FarCheckpoint : public Nodes {
protected:
    // Written by the node: tensors t0, t1 and so on of that many bytes.
    void save(const std::string& name, const std::vector<Bytes>& sizes, SaveOptions options = {}) {
        std::vector<TensorToSave> tensors;
        contents.reserve(sizes.size());  // the tensors lie in them
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            contents.push_back(test::text_of(sizes[i], i + 1));
            tensors.push_back({"t" + std::to_string(i),
                               Dtype::u8,
                               {sizes[i]},
                               Buffer::host(contents.back().data(), sizes[i])});
        }
        const auto saved = machine.save(tensors, path(name), options).wait();
        ASSERT_TRUE(saved) << saved.error().to_string();
    }
    std::string far(const std::string& name) const { return "n/file:" + path(name); }

    std::string read(const LoadedTensor* tensor) {
        if (tensor == nullptr) return "no such tensor";
        std::string text(tensor->buffer.size(), '\0');
        const auto done = here->copy(tensor->buffer, Buffer::host(text.data(), text.size())).wait();
        EXPECT_TRUE(done) << done.error().to_string();
        return text;
    }
    void expect_loaded(const std::vector<std::string>& paths, LoadOptions options) {
        const auto checkpoint = Checkpoint::open(*here, paths);
        ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
        const Bytes before = serving->counts().sent;
        const auto loaded = here->load(*checkpoint, options).wait();
        ASSERT_TRUE(loaded) << loaded.error().to_string();
        // Node and client are one machine here: the files could be read without a node too.
        EXPECT_GE(serving->counts().sent - before, checkpoint->bytes());
        for (const Place& place : options.to)
            for (std::size_t i = 0; i < contents.size(); ++i)
                EXPECT_TRUE(read(loaded->find("t" + std::to_string(i), place)) == contents[i])
                    << place.to_string() << " t" << i;
    }

    std::vector<std::string> contents;
};

TEST_F(FarCheckpoint, ComesToHostMemoryAndGpus) {
    save("in/model.safetensors", {1, 5'000'001, 0, 4096, 3'000'000});
    LoadOptions options;
    options.to = {Place::host()};
    expect_loaded({far("in/model.safetensors")}, options);
    options.to = {Place::gpu(0), Place::gpu(5)};
    options.verify = true;
    expect_loaded({far("in/model.safetensors")}, options);
}

TEST_F(FarCheckpoint, AnIndexLeadsToItsFiles) {
    SaveOptions options;
    options.shard_bytes = 1'000'000;
    save("in", {900'000, 900'000, 900'000, 17}, options);
    const auto opened = Checkpoint::open(*here, {far("in/model.safetensors.index.json")});
    ASSERT_TRUE(opened) << opened.error().to_string();
    EXPECT_GE(opened->files().size(), 3u);
    for (const CheckpointFile& file : opened->files()) EXPECT_EQ(file.node, "n");
    LoadOptions load;
    load.to = {Place::gpu(1), Place::host()};
    expect_loaded({far("in/model.safetensors.index.json")}, load);
    std::filesystem::remove(path("in/" + std::filesystem::path(opened->files()[1].path).filename().string()));
    const auto lacking = Checkpoint::open(*here, {far("in/model.safetensors.index.json")});
    EXPECT_EQ(lacking.error().code, ErrorCode::not_found);
}

// An index in it, all its files, or the only one: as of a folder here.
TEST_F(FarCheckpoint, AFolderIsThatOfItsFiles) {
    SaveOptions options;
    options.shard_bytes = 1'000'000;
    LoadOptions load;
    load.to = {Place::gpu(1)};
    save("in", {900'000, 900'000, 900'000, 17}, options);
    expect_loaded({far("in")}, load);
    expect_loaded({far("in/")}, load);
    std::filesystem::remove(path("in/model.safetensors.index.json"));
    expect_loaded({far("in")}, load);
    contents.clear();
    std::filesystem::create_directory(path("in/one"));
    save("in/one/other.safetensors", {1000});
    expect_loaded({far("in/one")}, load);
    // One of several paths it cannot be.
    const auto opened = Checkpoint::open(*here, {far("in/one/other.safetensors"), far("in")});
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, ErrorCode::invalid_argument);
}

TEST_F(FarCheckpoint, ItsHeadersAreThoseOfTheNode) {
    save("in/model.safetensors", {100, 200});
    const auto there = Checkpoint::open(path("in/model.safetensors"));
    const auto here_opened = Checkpoint::open(*here, {far("in/model.safetensors")});
    ASSERT_TRUE(there && here_opened);
    ASSERT_EQ(there->tensors().size(), here_opened->tensors().size());
    for (std::size_t i = 0; i < there->tensors().size(); ++i) {
        EXPECT_EQ(there->tensors()[i].name, here_opened->tensors()[i].name);
        EXPECT_EQ(there->tensors()[i].offset, here_opened->tensors()[i].offset);
        EXPECT_EQ(there->tensors()[i].bytes, here_opened->tensors()[i].bytes);
    }
    EXPECT_EQ(there->files().front().identity, here_opened->files().front().identity);
    EXPECT_NE(here_opened->to_json().find("\"node\": \"n\""), std::string::npos);
}

TEST_F(FarCheckpoint, PathsOfThisMachineAreOpenedAsBefore) {
    save("in/model.safetensors", {100});
    const auto opened = Checkpoint::open(*here, {path("in/model.safetensors")});
    ASSERT_TRUE(opened) << opened.error().to_string();
    EXPECT_EQ(opened->files().front().node, "");
    EXPECT_TRUE(opened->check_file(0));
}

// Its number says nothing of this machine's GPUs.
TEST_F(FarCheckpoint, MemoryOfAGpuOfTheNodeIsSavedWhereThisMachineHasNone) {
    Topology::Parts parts;
    parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0"});
    ContextOptions options{path("no_gpu.json")};
    options.nodes = "n=" + address;
    options.key_file = path("key");
    test::put(options.machine, Topology::create(parts)->to_json());
    const auto client = Context::open(options);
    ASSERT_TRUE(client) << client.error().to_string();
    const auto memory = client->allocate(Place::gpu(7).on("n"), 100'000);
    ASSERT_TRUE(memory) << memory.error().to_string();
    std::string text = test::text_of(100'000, 1);
    ASSERT_TRUE(client->copy(Buffer::host(text.data(), text.size()), memory->buffer()).wait());
    const auto saved =
        client->save({{"t", Dtype::u8, {100'000}, memory->buffer()}}, path("saved.safetensors")).wait();
    ASSERT_TRUE(saved) << saved.error().to_string();
    EXPECT_TRUE(test::get(path("saved.safetensors")).ends_with(text));
}

TEST_F(FarCheckpoint, AFileThatHasChangedIsRefused) {
    save("in/model.safetensors", {4096});
    const auto opened = Checkpoint::open(*here, {far("in/model.safetensors")});
    ASSERT_TRUE(opened) << opened.error().to_string();
    std::filesystem::last_write_time(path("in/model.safetensors"),
                                     std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
    LoadOptions options;
    options.to = {Place::host()};
    EXPECT_EQ(here->load(*opened, options).wait().error().code, ErrorCode::mismatch);
}

// What is wrong -> what is said of it.
TEST_F(FarCheckpoint, WhatCannotBeIsOneError) {
    save("in/model.safetensors", {100});
    test::put(path("secret"), "x");
    std::filesystem::create_directory(path("in/empty"));
    test::put(path("in/short.safetensors"), test::get(path("in/model.safetensors")).substr(0, 20));
    struct Case {
        std::vector<std::string> paths;
        ErrorCode code;
        const char* words;
    };
    for (const auto& [paths, code, words] :
         std::vector<Case>{{{far("in/none.safetensors")}, ErrorCode::not_found, "in/none.safetensors"},
                           {{far("secret")}, ErrorCode::permission_denied, "n says"},
                           {{far("in/none/")}, ErrorCode::not_found, "in/none"},
                           {{far("in/empty")}, ErrorCode::not_found, "n/file:"},
                           {{far("")}, ErrorCode::permission_denied, "n says"},
                           {{far("in/short.safetensors")}, ErrorCode::invalid_argument, "n/file:"},
                           {{far("in/model.safetensors"), path("in/model.safetensors")},
                            ErrorCode::invalid_argument,
                            "one machine"},
                           {{path("in/model.safetensors"), far("in/model.safetensors")},
                            ErrorCode::invalid_argument,
                            "one machine"},
                           {{far("in/model.safetensors"), "m/file:" + path("in/model.safetensors")},
                            ErrorCode::invalid_argument,
                            "one machine"},
                           {{"nosuch.invalid/file:/x.safetensors"}, ErrorCode::not_found, "nosuch.invalid"},
                           {{}, ErrorCode::invalid_argument, "no path"}}) {
        const auto opened = Checkpoint::open(*here, paths);
        ASSERT_FALSE(opened) << words;
        EXPECT_EQ(opened.error().code, code) << opened.error().to_string();
        EXPECT_NE(opened.error().to_string().find(words), std::string::npos) << opened.error().to_string();
    }
}

TEST_F(FarCheckpoint, WhatReadsEveryByteIsDoneWhereTheFilesLie) {
    save("in/model.safetensors", {100});
    const auto opened = Checkpoint::open(*here, {far("in/model.safetensors")});
    ASSERT_TRUE(opened) << opened.error().to_string();
    EXPECT_EQ(opened->check_file(0).error().code, ErrorCode::unsupported);
    EXPECT_EQ(opened->write_manifest(path("out/manifest")).error().code, ErrorCode::unsupported);
    EXPECT_EQ(opened->verify_manifest(path("out/manifest")).error().code, ErrorCode::unsupported);
}

TEST_F(FarCheckpoint, AManifestOfThisMachineIsComparedAsBytesPass) {
    save("in/model.safetensors", {3'000'000});
    ASSERT_TRUE(Checkpoint::open(path("in/model.safetensors"))->write_manifest(path("out/manifest")));
    LoadOptions options;
    options.to = {Place::host()};
    options.manifest = path("out/manifest");
    expect_loaded({far("in/model.safetensors")}, options);
}

}  // namespace
}  // namespace sidestep
