// Loading onto an emulated machine: the bytes of every tensor at every place, and what goes wrong.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include <fmt/format.h>

#include <sidestep/sidestep.hpp>
#include "checkpoint/manifest_reader.hpp"
#include "checkpoint/safetensors.hpp"
#include "driver/files.hpp"
#include "tests/contents.hpp"
#include "tests/unit/checkpoint/gguf_files.hpp"

namespace sidestep {
namespace {

namespace fs = std::filesystem;
using checkpoint::TensorToWrite;

Context machine() {
    return std::move(Context::open({"dgx-h100"})).value();
}

// A file as the format's rules have it, without the code that saves.
std::string write_tensors(const Folder& folder, const std::string& name,
                          const std::vector<TensorToWrite>& tensors, std::mt19937& random) {
    const auto header = checkpoint::write_header(tensors, {});
    EXPECT_TRUE(header);
    return folder.write(name,
                        header->bytes + test::text_of(header->file_size - header->bytes.size(), random()));
}

Checkpoint open(const std::string& path) {
    auto checkpoint = Checkpoint::open(path);
    EXPECT_TRUE(checkpoint) << (checkpoint ? "" : checkpoint.error().to_string());
    return *checkpoint;
}

std::string bytes_at(const Context& context, const Buffer& buffer) {
    std::string bytes(buffer.size(), '\0');
    if (bytes.empty()) return bytes;
    const auto copied = context.copy(buffer, Buffer::host(bytes.data(), bytes.size())).wait();
    EXPECT_TRUE(copied) << copied.error().to_string();
    return bytes;
}

// Index by index.
std::string slice_of(const TensorInfo& info, const std::string& bytes, const LoadedTensor& part) {
    if (part.axis < 0 || bytes.empty()) return bytes;
    const auto axis = static_cast<std::size_t>(part.axis);
    std::uint64_t outer = 1;
    for (std::size_t i = 0; i < axis; ++i) outer *= info.shape[i];
    const std::uint64_t extent = info.shape[axis];
    const Bytes inner = bytes.size() / outer / extent;
    std::string slice;
    for (std::uint64_t o = 0; o < outer; ++o)
        slice += bytes.substr((o * extent + part.first) * inner, part.shape[axis] * inner);
    return slice;
}

// Compares every tensor with the files; answers how many were found.
std::size_t check_all(const Context& context, const Checkpoint& checkpoint, const Loaded& loaded) {
    std::size_t found = 0;
    std::vector<std::string> files;
    for (const CheckpointFile& file : checkpoint.files()) files.push_back(test::get(file.path));
    for (const Place& place : loaded.places()) {
        for (const LoadedTensor& part : loaded.tensors(place)) {
            const TensorInfo* info = checkpoint.find(part.name);
            EXPECT_NE(info, nullptr) << part.name;
            if (info == nullptr) return 0;
            EXPECT_EQ(loaded.find(part.name, place), &part);
            EXPECT_EQ(reinterpret_cast<std::uintptr_t>(part.buffer.address()) % 256, 0u) << part.name;
            EXPECT_EQ(part.dtype, info->dtype);
            const std::string bytes = files[info->file].substr(info->offset, info->bytes);
            EXPECT_EQ(bytes_at(context, part.buffer), slice_of(*info, bytes, part))
                << part.name << " at " << place.to_string();
            ++found;
        }
    }
    return found;
}

// All 22 types; scalars, empty tensors, matrices.
std::vector<TensorToWrite> every_type(std::mt19937& random) {
    std::vector<TensorToWrite> tensors;
    for (int type = 0; type < 22; ++type) {
        const auto dtype = static_cast<Dtype>(type);
        const std::string name = fmt::format("model.{}", to_string(dtype));
        tensors.push_back({name + ".w", dtype, {8, 8 * (1 + random() % 9)}});
        tensors.push_back({name + ".empty", dtype, {0, 3}});
        if (bits_of(dtype) >= 8) tensors.push_back({name + ".scalar", dtype, {}});
        if (bits_of(dtype) >= 8)
            tensors.push_back({name + ".odd", dtype, {1 + random() % 5, 3, 1 + random() % 700}});
    }
    return tensors;
}

std::vector<Place> some_places(std::size_t count, bool with_host) {
    std::vector<Place> places;
    for (std::size_t i = 0; i < count; ++i) places.push_back(Place::gpu(static_cast<int>(i)));
    if (with_host) places.back() = Place::host();
    return places;
}

class Load : public testing::Test {
protected:
    Error error_of(const Checkpoint& checkpoint, const LoadOptions& options) {
        auto loaded = context.load(checkpoint, options).wait();
        EXPECT_FALSE(loaded);
        return loaded ? Error{} : loaded.error();
    }

    Folder folder;
    std::mt19937 random{11};
    Context context = machine();
};

TEST_F(Load, EveryTypeLayoutAndNumberOfPlaces) {
    write_tensors(folder, "a.safetensors", every_type(random), random);
    auto more = every_type(random);
    for (TensorToWrite& tensor : more) tensor.name = fmt::format("second.{}", tensor.name);
    write_tensors(folder, "b.safetensors", more, random);
    const Checkpoint checkpoint = open(folder.path());
    for (std::size_t count = 1; count <= 8; ++count) {
        for (const Layout layout : {Layout::replicate, Layout::by_tensor, Layout::by_axis}) {
            LoadOptions options;
            options.to = some_places(count, count % 3 == 0);
            options.layout = layout;
            if (layout == Layout::by_axis)
                options.rules = {{"*.odd", -1}, {"*F4.w", 0}, {"*F6_*", 0}, {"*.w", 1}};
            options.verify = count == 4;
            options.chunk = count % 2 == 0 ? 64_KiB : 0;
            const auto loaded = context.load(checkpoint, options).wait();
            ASSERT_TRUE(loaded) << loaded.error().to_string();
            const std::size_t times = layout == Layout::by_tensor ? 1 : count;
            EXPECT_EQ(check_all(context, checkpoint, *loaded), checkpoint.tensors().size() * times);
            EXPECT_EQ(loaded->receipt().verified, options.verify);
            EXPECT_TRUE(loaded->receipt().notes.empty()) << loaded->receipt().notes[0];
            if (HasFailure()) return;
        }
    }
}

TEST_F(Load, WhatLoadedAnswers) {
    write_tensors(folder, "model.safetensors", {{"w", Dtype::f32, {6, 5}}, {"v", Dtype::f32, {3}}}, random);
    const Checkpoint checkpoint = open(folder.path());
    LoadOptions options;
    options.to = {Place::gpu(3), Place::host(), Place::gpu(1), Place::gpu(0)};
    options.layout = Layout::by_axis;
    options.rules = {{"w", 0}, {"other", 0}};
    Loading loading = context.load(checkpoint, options);
    EXPECT_EQ(loading.bytes_total(), 120u + 4 * 12);
    auto waited = loading.wait();
    ASSERT_TRUE(waited) << waited.error().to_string();
    const Loaded& loaded = *waited;
    EXPECT_EQ(loading.bytes_done(), loading.bytes_total());
    EXPECT_EQ(loaded.places(), options.to);
    EXPECT_EQ(loaded.receipt().bytes, loading.bytes_total());
    EXPECT_EQ(loaded.file_bytes(), 132u);
    const LoadedTensor* part = loaded.find("w", Place::gpu(1));
    ASSERT_NE(part, nullptr);
    EXPECT_EQ(part->axis, 0);
    EXPECT_EQ(part->first, 3u);
    EXPECT_EQ(part->shape, (std::vector<std::uint64_t>{1, 5}));
    EXPECT_EQ(loaded.find("v", Place::gpu(1))->axis, -1);
    EXPECT_EQ(loaded.find("w", Place::gpu(2)), nullptr);
    EXPECT_EQ(loaded.find("no", Place::gpu(1)), nullptr);
    EXPECT_TRUE(loaded.tensors(Place::gpu(2)).empty());
    EXPECT_EQ(loaded.allocation(Place::gpu(2)), nullptr);
    EXPECT_EQ(loaded.allocation(Place::gpu(3))->place(), Place::gpu(3));
    ASSERT_EQ(loaded.receipt().notes.size(), 1u);
    EXPECT_NE(loaded.receipt().notes[0].find("other"), std::string::npos);
    for (const char* word : {"limit:", "faster:", "page cache", "read", "emulated", "shard rule 2"})
        EXPECT_NE(loaded.report().find(word), std::string::npos) << word << "\n" << loaded.report();
}

TEST_F(Load, NotesOfTheFilesComeBeforeThoseOfTheLoad) {
    const std::string path = write_tensors(folder, "m.safetensors", {{"w", Dtype::u8, {30, 10}}}, random);
    fs::resize_file(path, fs::file_size(path) + 100);
    CheckpointOptions lenient;
    lenient.lenient = true;
    const auto checkpoint = Checkpoint::open(path, lenient);
    ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
    LoadOptions options;
    options.layout = Layout::by_axis;
    options.rules = {{"w", 0}, {"other", 0}};
    const auto loaded = context.load(*checkpoint, options).wait();
    ASSERT_TRUE(loaded) << loaded.error().to_string();
    ASSERT_EQ(loaded->receipt().notes.size(), 2u);
    EXPECT_EQ(loaded->receipt().notes[0], checkpoint->notes()[0]);
    EXPECT_NE(loaded->receipt().notes[1].find("other"), std::string::npos);
    EXPECT_NE(loaded->report().find(checkpoint->notes()[0]), std::string::npos);
    EXPECT_NE(loaded->report().find("limit:  " + (loaded->limit().empty() ? "none" : loaded->limit()) + "\n"),
              std::string::npos);
    EXPECT_NE(loaded->report().find("faster: " + loaded->faster() + "\n"), std::string::npos);
}

TEST_F(Load, OnlySomeTensorsReadsOnlyTheirBytes) {
    write_tensors(folder, "model.safetensors",
                  {{"a", Dtype::u8, {1 << 20}}, {"b", Dtype::u8, {1 << 20}}, {"c", Dtype::u8, {1 << 20}}},
                  random);
    const auto part = open(folder.path()).only({"a", "c"});
    ASSERT_TRUE(part);
    const auto loaded = context.load(*part).wait();
    ASSERT_TRUE(loaded) << loaded.error().to_string();
    EXPECT_EQ(loaded->file_bytes(), 2u << 20);
    EXPECT_EQ(check_all(context, *part, *loaded), 2u);
}

TEST_F(Load, NothingToRead) {
    write_tensors(folder, "model.safetensors", {{"none", Dtype::f32, {0}}}, random);
    const Checkpoint checkpoint = open(folder.path());
    const auto loaded = context.load(checkpoint).wait();
    ASSERT_TRUE(loaded) << loaded.error().to_string();
    EXPECT_EQ(check_all(context, checkpoint, *loaded), 1u);
    EXPECT_FALSE(loaded->report().empty());
}

TEST_F(Load, OutlivesEverything) {
    write_tensors(folder, "model.safetensors", {{"w", Dtype::u8, {300000}}}, random);
    std::optional<Loaded> loaded;
    {
        Context other = machine();
        std::optional<Checkpoint> checkpoint = open(folder.path());
        Loading loading = other.load(*checkpoint);
        checkpoint.reset();
        loaded.emplace(std::move(loading.wait()).value());
    }
    const Loaded copy = *loaded;
    loaded.reset();
    EXPECT_EQ(copy.find("w", Place::gpu(0))->name, "w");
    const std::string file = test::get(folder / "model.safetensors");
    EXPECT_EQ(std::memcmp(copy.find("w", Place::gpu(0))->buffer.address(), file.data() + file.size() - 300000,
                          300000),
              0);
}

TEST_F(Load, PlacesAndOptionsThatMakeNoSense) {
    write_tensors(folder, "model.safetensors", {{"w", Dtype::u8, {30, 10}}}, random);
    const Checkpoint checkpoint = open(folder.path());
    const auto refused = [&](std::vector<Place> to, ErrorCode code, const std::string& word) {
        LoadOptions options;
        options.to = std::move(to);
        const Error error = error_of(checkpoint, options);
        EXPECT_EQ(error.code, code) << error.to_string();
        EXPECT_NE(error.to_string().find(word), std::string::npos) << error.to_string();
    };
    refused({}, ErrorCode::invalid_argument, "no place");
    refused({Place::gpu(0), Place::host(), Place::gpu(0)}, ErrorCode::invalid_argument,
            "gpu:0 is named twice");
    refused({Place::file("/tmp/x")}, ErrorCode::invalid_argument, "file:/tmp/x");
    refused({Place::shared("kv")}, ErrorCode::invalid_argument, "shared:kv");
    refused({Place::gpu(8)}, ErrorCode::not_found, "gpu:8");
    refused({Place::gpu(0).on("node7")}, ErrorCode::unsupported, "node7");
    LoadOptions options;
    options.layout = Layout::by_axis;
    EXPECT_EQ(error_of(checkpoint, options).code, ErrorCode::invalid_argument);
    options.rules = {{"w", 2}};
    EXPECT_NE(error_of(checkpoint, options).message.find("tensor w"), std::string::npos);
    options.layout = Layout::replicate;
    EXPECT_NE(error_of(checkpoint, options).message.find("rules"), std::string::npos);
}

// Both GPUs are told of at once, and what was taken for the third is given back.
TEST_F(Load, TooLittleMemoryIsSaidBeforeAnythingIsRead) {
    write_tensors(folder, "model.safetensors", {{"w", Dtype::u8, {3 << 20}}}, random);
    const Checkpoint checkpoint = open(folder.path());
    ::setenv("SIDESTEP_EMULATED_GPU_MEMORY", "4MiB", 1);
    Context small = machine();
    ::unsetenv("SIDESTEP_EMULATED_GPU_MEMORY");
    auto first = small.allocate(Place::gpu(0), 2_MiB);
    auto third = small.allocate(Place::gpu(2), 3_MiB);
    ASSERT_TRUE(first && third);
    LoadOptions options;
    options.to = {Place::gpu(0), Place::gpu(1), Place::gpu(2)};
    const auto loaded = small.load(checkpoint, options).wait();
    ASSERT_FALSE(loaded);
    EXPECT_EQ(loaded.error().code, ErrorCode::out_of_memory);
    for (const char* word :
         {"gpu:0 needs 3 MiB", "gpu:2 needs 3 MiB", "1 MiB are missing", "2 MiB are missing"})
        EXPECT_NE(loaded.error().message.find(word), std::string::npos) << loaded.error().to_string();
    EXPECT_EQ(loaded.error().message.find("gpu:1"), std::string::npos);
    EXPECT_TRUE(small.allocate(Place::gpu(1), 4_MiB));
}

TEST_F(Load, IsHandedOutOnce) {
    write_tensors(folder, "model.safetensors", {{"w", Dtype::u8, {5}}}, random);
    Loading loading = context.load(open(folder.path()));
    ASSERT_TRUE(loading.wait());
    const auto again = loading.wait();
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().code, ErrorCode::invalid_argument) << again.error().to_string();
}

TEST_F(Load, MemoryGoesWithTheLastHolder) {
    write_tensors(folder, "model.safetensors", {{"w", Dtype::u8, {3 << 20}}}, random);
    const Checkpoint checkpoint = open(folder.path());
    ::setenv("SIDESTEP_EMULATED_GPU_MEMORY", "4MiB", 1);
    Context small = machine();
    ::unsetenv("SIDESTEP_EMULATED_GPU_MEMORY");
    for (int round = 0; round < 3; ++round) {
        Loading loading = small.load(checkpoint);
        if (round == 0) continue;  // dropped while in flight
        auto loaded = loading.wait();
        ASSERT_TRUE(loaded) << loaded.error().to_string();
        EXPECT_FALSE(small.allocate(Place::gpu(0), 2_MiB));
        loaded = Error{};  // the Loading is still there
        EXPECT_TRUE(small.allocate(Place::gpu(0), 2_MiB));
    }
}

TEST_F(Load, CancelledOrDone) {
    const auto header = checkpoint::write_header({{"w", Dtype::u8, {Bytes{1} << 30}}}, {});
    folder.write("model.safetensors", header->bytes);
    fs::resize_file(folder / "model.safetensors", header->file_size);
    const Checkpoint checkpoint = open(folder.path());
    Loading loading = context.load(checkpoint);
    loading.cancel();
    const auto ended = loading.wait();
    EXPECT_TRUE(ended || ended.error().code == ErrorCode::cancelled) << ended.error().to_string();
    EXPECT_LE(loading.bytes_done(), loading.bytes_total());
}

TEST_F(Load, AFileThatShrinksAfterItWasOpened) {
    write_tensors(folder, "model.safetensors", {{"a", Dtype::u64, {1000}}, {"b", Dtype::u8, {1000}}}, random);
    const Checkpoint checkpoint = open(folder.path());
    fs::resize_file(folder / "model.safetensors", checkpoint.find("b")->offset + 100);
    const Error error = error_of(checkpoint, {});
    EXPECT_EQ(error.code, ErrorCode::end_of_file);
    for (const std::string& word : {folder / "model.safetensors", std::string("tensor b"),
                                    std::to_string(checkpoint.find("b")->offset + 100)})
        EXPECT_NE(error.to_string().find(word), std::string::npos) << error.to_string();
    fs::remove(folder / "model.safetensors");
    EXPECT_EQ(error_of(checkpoint, {}).code, ErrorCode::not_found);
}

TEST_F(Load, AFileThatHasChangedSince) {
    const std::string path = write_tensors(folder, "model.safetensors", {{"a", Dtype::u8, {1000}}}, random);
    const Checkpoint checkpoint = open(folder.path());
    const std::string content = test::get(path);
    // The clock of the file system may stand still for some milliseconds.
    const auto before = driver::file_facts(path);
    while ((*driver::file_facts(path))->version == (*before)->version)
        folder.write("model.safetensors", content);
    const Error error = error_of(checkpoint, {});
    EXPECT_EQ(error.code, ErrorCode::mismatch);
    EXPECT_NE(error.message.find("changed"), std::string::npos) << error.to_string();
}

TEST_F(Load, AFileThatChangesBeforeTheLoadHasEnded) {
    const std::string path = write_tensors(folder, "model.safetensors", {{"a", Dtype::u8, {1000}}}, random);
    const std::string content = test::get(path);
    struct Case {
        const char* what;
        bool fails;
        std::function<void()> change;
    };
    const Case cases[] = {
        {"written", true,
         [&] { std::fstream(path, std::ios::in | std::ios::out | std::ios::binary) << content; }},
        {"another mode", false, [&] { ::chmod(path.c_str(), 0600); }},
        {"a link", false, [&] { fs::create_hard_link(path, folder / "link"), fs::remove(folder / "link"); }},
    };
    for (const Case& each : cases) {
        SCOPED_TRACE(each.what);
        // A load may have ended before the file is changed, where the processor is somebody else's meanwhile.
        bool told = false;
        for (int tries = 0; tries < 100 && !told; ++tries) {
            const Checkpoint checkpoint = open(folder.path());
            Loading loading = context.load(checkpoint);
            const auto before = (*driver::file_facts(path))->version;
            while ((*driver::file_facts(path))->version == before) each.change();
            const auto loaded = loading.wait();
            if (!loaded) {
                EXPECT_EQ(loaded.error().code, ErrorCode::mismatch) << loaded.error().to_string();
            }
            ASSERT_TRUE(each.fails || loaded) << loaded.error().to_string();
            told = each.fails ? !loaded : !loaded->receipt().notes.empty();
            if (told && loaded) {
                EXPECT_NE(loaded->receipt().notes[0].find("a link of " + path + " changed"),
                          std::string::npos)
                    << loaded->receipt().notes[0];
            }
        }
        EXPECT_TRUE(told) << "no load was told of the change";
    }
}

TEST_F(Load, BytesAreComparedWithAManifest) {
    write_tensors(folder, "a.safetensors", {{"a", Dtype::u8, {5 << 20}}, {"b", Dtype::u8, {77777}}}, random);
    write_tensors(folder, "c.safetensors", {{"c", Dtype::u8, {1 << 20}}, {"d", Dtype::u8, {1}}}, random);
    Checkpoint checkpoint = open(folder.path());
    LoadOptions options;
    options.manifest = folder / "sums.json";
    ASSERT_TRUE(checkpoint.write_manifest(options.manifest));
    options.to = {Place::gpu(0), Place::gpu(1)};
    auto loaded = context.load(checkpoint, options).wait();
    ASSERT_TRUE(loaded) << loaded.error().to_string();
    EXPECT_EQ(check_all(context, checkpoint, *loaded), 8u);
    EXPECT_TRUE(loaded->receipt().notes.empty());
    const auto part = checkpoint.only({"b", "d"});
    loaded = context.load(*part, options).wait();
    ASSERT_TRUE(loaded) << loaded.error().to_string();
    EXPECT_EQ(check_all(context, *part, *loaded), 4u);
    EXPECT_TRUE(loaded->receipt().notes.empty());

    const TensorInfo* a = checkpoint.find("a");
    std::fstream file(folder / "a.safetensors", std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(a->offset + (3u << 20)));
    file.put(static_cast<char>(~test::get(folder / "a.safetensors")[a->offset + (3u << 20)]));
    file.close();
    checkpoint = open(folder.path());
    const Error error = error_of(checkpoint, options);
    EXPECT_EQ(error.code, ErrorCode::mismatch);
    for (const char* word : {"a.safetensors", "block 3"})
        EXPECT_NE(error.to_string().find(word), std::string::npos) << error.to_string();
    options.manifest = folder / "none.json";
    EXPECT_EQ(error_of(checkpoint, options).code, ErrorCode::not_found);
}

TEST_F(Load, AManifestHasTheFilesThatAreRead) {
    const std::string path = write_tensors(folder, "a.safetensors", {{"a", Dtype::u8, {5000}}}, random);
    LoadOptions options;
    options.manifest = folder / "sums.json";
    ASSERT_TRUE(open(path).write_manifest(options.manifest));
    write_tensors(folder, "b.safetensors", {{"b", Dtype::u8, {5000}}, {"none", Dtype::u8, {0}}}, random);
    const Checkpoint both = open(folder.path());
    for (const auto& names : {std::vector<std::string>{"a"}, {"a", "none"}}) {
        const auto part = both.only(names);
        const auto loaded = context.load(*part, options).wait();
        ASSERT_TRUE(loaded) << loaded.error().to_string();
        EXPECT_EQ(check_all(context, *part, *loaded), names.size());
    }
    const Error error = error_of(both, options);
    EXPECT_EQ(error.code, ErrorCode::mismatch);
    EXPECT_NE(error.message.find("no checksums of b.safetensors"), std::string::npos) << error.message;
    EXPECT_EQ(both.verify_manifest(options.manifest).error().code, ErrorCode::mismatch);
}

// GGUF gives empty tensors offsets too: anywhere.
TEST_F(Load, EmptyTensorsWithinOthers) {
    GgufParts parts;
    parts.tensors = {gguf_tensor("a", {64, 5000}, 0, 0), gguf_tensor("in a", {0}, 0, 32),
                     gguf_tensor("in a too", {0, 3}, 0, 64), gguf_tensor("b", {8}, 0, 1'280'000),
                     gguf_tensor("in b", {0}, 0, 1'280'000)};
    parts.data = 1'280'032;
    std::string content = gguf_file(parts);
    content.replace(content.size() - parts.data, parts.data, test::text_of(parts.data, random()));
    const Checkpoint checkpoint = open(folder.write("model.gguf", content));
    LoadOptions options;
    options.to = {Place::gpu(0), Place::gpu(1)};
    options.manifest = folder / "sums.json";
    ASSERT_TRUE(checkpoint.write_manifest(options.manifest));
    for (const Layout layout : {Layout::replicate, Layout::by_tensor}) {
        options.layout = layout;
        const auto loaded = context.load(checkpoint, options).wait();
        ASSERT_TRUE(loaded) << loaded.error().to_string();
        EXPECT_EQ(check_all(context, checkpoint, *loaded), layout == Layout::replicate ? 10u : 5u);
    }
}

TEST_F(Load, AHeaderIsComparedWhicheverTensorIsWanted) {
    const std::string path = write_tensors(
        folder, "model.safetensors", {{"a", Dtype::f32, {1 << 20}}, {"b", Dtype::bf16, {5000}}}, random);
    LoadOptions options;
    options.manifest = folder / "sums.json";
    ASSERT_TRUE(open(path).write_manifest(options.manifest));
    EXPECT_TRUE(context.load(*open(path).only({"b"}), options).wait());
    std::string content = test::get(path);
    content.replace(content.find("\"BF16\""), 6, "\"F16\" ");
    folder.write("model.safetensors", content);
    const auto second = open(path).only({"b"});
    ASSERT_TRUE(second) << second.error().to_string();
    ASSERT_EQ(second->tensors()[0].dtype, Dtype::f16);
    ASSERT_GT(second->tensors()[0].offset, 2_MiB);
    const Error error = error_of(*second, options);
    EXPECT_EQ(error.code, ErrorCode::mismatch);
    for (const char* word : {"block 0", "the header"})
        EXPECT_NE(error.to_string().find(word), std::string::npos) << error.to_string();
}

}  // namespace
}  // namespace sidestep
