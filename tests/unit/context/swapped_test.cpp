// Copies of files that somebody else changes after the copy has looked at them, and before it opens them.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "backends/builtin.hpp"
#include "tests/contents.hpp"
#include "transfer/engine.hpp"

namespace sidestep {
namespace {

// A backend, and whoever comes between its look at a file and its opening it.
class Between final : public backend::Backend {
public:
    explicit Between(backend::Backend& real) : real_(real) {}
    std::string_view name() const override { return real_.name(); }
    backend::Support probe(const Topology&) override { return backend::Support::yes("probed"); }
    std::vector<backend::Capability> capabilities() const override { return real_.capabilities(); }
    backend::Allocator* allocator() override { return real_.allocator(); }
    Result<std::optional<backend::Description>> describe(const Buffer& buffer) override {
        return real_.describe(buffer);
    }
    Result<std::unique_ptr<backend::Registration>> attach(const Buffer& buffer,
                                                          const backend::AttachOptions& options) override {
        const bool theirs = buffer.place().is_file() && buffer.place().path() == path;
        if (theirs && meanwhile) std::exchange(meanwhile, nullptr)();
        return real_.attach(buffer, options);
    }
    Result<backend::Progress> start(const backend::Piece& piece, backend::Flight& flight) override {
        return real_.start(piece, flight);
    }
    bool look() override { return real_.look(); }

    std::string path;                 // before that file is opened,
    std::function<void()> meanwhile;  // this happens, once

private:
    backend::Backend& real_;
};

using test::get;
using test::put;

class Swapped : public testing::Test {
protected:
    Swapped() : topology_(Topology::open("dgx-h100").value()) {
        backends::add_builtin(real_, topology_, base::Environment{});
        for (backend::Backend* backend : real_.usable()) {
            auto between = std::make_unique<Between>(*backend);
            if (backend->name() == "file") between_ = between.get();
            registry_.add(std::move(between), topology_);
        }
        engine_.emplace(topology_, registry_);
        std::string name = (std::filesystem::temp_directory_path() / "sidestep-swapped-XXXXXX").string();
        EXPECT_NE(::mkdtemp(name.data()), nullptr);
        folder_ = name;
        put(a(), "what was looked at");
        put(b(), "what was there before");
        put(other(), "another file, which is longer");
    }
    ~Swapped() override {
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
    }

    std::string a() const { return folder_ + "/a"; }
    std::string b() const { return folder_ + "/b"; }
    std::string other() const { return folder_ + "/other"; }

    // What becomes of the copy where `meanwhile` comes before `path` is opened.
    Result<Receipt> copy(const Buffer& from, const Buffer& to, const std::string& path,
                         std::function<void()> meanwhile) {
        between_->path = path;
        between_->meanwhile = std::move(meanwhile);
        const auto job = engine_->submit(from, to, {}, nullptr);
        engine_->wait(job, {});
        EXPECT_FALSE(between_->meanwhile) << path << " was not opened";
        return job->result();
    }
    Result<Receipt> replace(const Buffer& from, const Buffer& to, const std::string& path) {
        return copy(from, to, path, [=, this] { std::filesystem::rename(other(), path); });
    }
    Result<Receipt> append(const Buffer& from, const Buffer& to, const std::string& path) {
        return copy(from, to, path, [=] { std::ofstream(path, std::ios::app) << ", and more"; });
    }

    static void expect_refused(const Result<Receipt>& result, const std::string& words) {
        ASSERT_FALSE(result) << result->bytes << " bytes were copied of what nobody looked at";
        EXPECT_EQ(result.error().code, ErrorCode::io_error);
        EXPECT_TRUE(result.error().message.starts_with(words)) << result.error().to_string();
    }

    Topology topology_;
    backend::Registry real_;
    backend::Registry registry_;
    Between* between_ = nullptr;
    std::optional<transfer::Engine> engine_;
    std::string folder_;
};

TEST_F(Swapped, AWholeSourceIsNotCutShort) {
    char memory[18];
    for (const Buffer& to : {Buffer::file(b()), Buffer::host(memory, sizeof memory)}) {
        put(a(), "what was looked at");
        put(other(), "another file, which is longer");
        expect_refused(replace(Buffer::file(a()), to, a()), a() + " was replaced by another file");
        put(a(), "what was looked at");
        expect_refused(append(Buffer::file(a()), to, a()), a() + " was written to");
    }
    EXPECT_EQ(get(b()), "what was there before");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 2);
}

TEST_F(Swapped, ARangeIsOfTheFileThatWasLookedAt) {
    const Buffer range = Buffer::file(a(), 5, 3);
    expect_refused(replace(range, Buffer::file(b()), a()), a() + " was replaced by another file");
    put(a(), "what was looked at");
    const auto grown = append(range, Buffer::file(b()), a());
    ASSERT_TRUE(grown) << "one that grows has the range still: " << grown.error().to_string();
    EXPECT_EQ(get(b()), "was");
}

TEST_F(Swapped, ATargetThatIsWrittenInPlaceIsTheOneThatWasLookedAt) {
    const auto result = replace(Buffer::file(a(), 0, 4), Buffer::file(b(), 0, 4), b());
    expect_refused(result, b() + " was replaced by another file");
    EXPECT_EQ(get(b()), "another file, which is longer");
}

TEST_F(Swapped, AWholeTargetTakesThePlaceOfWhateverIsThere) {
    const auto done = replace(Buffer::file(a()), Buffer::file(b()), b());
    ASSERT_TRUE(done) << done.error().to_string();
    EXPECT_EQ(get(b()), "what was looked at");
}

}  // namespace
}  // namespace sidestep
