// Every option at the ends of its range and beyond, through the C++ interface.
#include <gtest/gtest.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sidestep/sidestep.hpp>

#include "tests/contents.hpp"
#include "tests/unit/group/ranks.hpp"

namespace sidestep {
namespace {

struct OptionCase {
    std::string_view where, option, value, verdict;
};
constexpr OptionCase cases[] = {
#define OPTION_CASE(where, option, value, verdict) {#where, #option, #value, #verdict},
#include "tests/option_cases.h"
#undef OPTION_CASE
};

// A hang is a failure, not a wait for ever.
constexpr std::chrono::milliseconds hang{60'000};
constexpr std::size_t size = 300'005;

// False where the type does not hold the value.
template <typename T>
bool set(T& member, std::string_view value) {
    if constexpr (std::is_enum_v<T>) {
        int number = 0;
        if (!set(number, value)) return false;
        member = static_cast<T>(number);
        return true;
    } else {
        const char* const end = value.data() + value.size();
        const auto [read, error] = std::from_chars(value.data(), end, member);
        return error == std::errc() && read == end;
    }
}
bool set(std::chrono::milliseconds& member, std::string_view value) {
    std::chrono::milliseconds::rep number = 0;
    if (!set(number, value)) return false;
    member = std::chrono::milliseconds(number);
    return true;
}

template <typename Options>
std::optional<Options> with_shared(const OptionCase& given) {
    Options options;
    bool held = false;
    if (given.option == "chunk") held = set(options.chunk, given.value);
    if (given.option == "max_staging") held = set(options.max_staging, given.value);
    if (given.option == "deadline") held = set(options.deadline, given.value);
    if (given.option == "stall_limit") held = set(options.stall_limit, given.value);
    if (given.option == "page_cache") held = set(options.page_cache, given.value);
    return held ? std::optional(options) : std::nullopt;
}

std::optional<CopyOptions> copy_options(const OptionCase& given) {
    if (given.where == "shared") return with_shared<CopyOptions>(given);
    CopyOptions options;
    bool held = false;
    if (given.option == "require") held = set(options.require, given.value);
    if (given.option == "prefer") held = set(options.prefer, given.value);
    if (given.option == "lanes") held = set(options.lanes, given.value);
    return held ? std::optional(options) : std::nullopt;
}

std::optional<LoadOptions> load_options(const OptionCase& given) {
    if (given.where == "shared") return with_shared<LoadOptions>(given);
    LoadOptions options;
    return set(options.layout, given.value) ? std::optional(options) : std::nullopt;
}

std::optional<SaveOptions> save_options(const OptionCase& given) {
    if (given.where == "shared") return with_shared<SaveOptions>(given);
    SaveOptions options;
    return set(options.shard_bytes, given.value) ? std::optional(options) : std::nullopt;
}

std::optional<GroupOptions> group_options(const OptionCase& given) {
    GroupOptions options;
    bool held = false;
    if (given.option == "timeout") held = set(options.timeout, given.value);
    if (given.option == "join_timeout") held = set(options.join_timeout.emplace(), given.value);
    if (given.option == "max_blocks") held = set(options.max_blocks, given.value);
    if (given.option == "policy") held = set(options.policy, given.value);
    return held ? std::optional(options) : std::nullopt;
}

bool names_range(const Error& error, const OptionCase& given) {
    const std::string start = std::string(given.option) + " is " + std::string(given.value);
    return error.code == ErrorCode::invalid_argument && error.message.starts_with(start) &&
           error.hint.starts_with("it may be 0 (") && error.hint.find(") to ") != std::string::npos;
}

// What may come of a value that is tight. No emulated machine has the copy engines of GroupPolicy::zero_sm
// for every operation.
bool too_little(const Error& error) {
    return error.code == ErrorCode::timed_out || error.code == ErrorCode::path_unavailable ||
           error.code == ErrorCode::unsupported || error.hint == "raise max_staging";
}

// Whether it went as the case says; `what` is what was tried.
template <typename T>
bool expect(const OptionCase& given, const Result<T>& result, const std::string& what) {
    const std::string said = result ? "all went well" : result.error().to_string();
    const bool refused = !result && names_range(result.error(), given);
    const bool well = given.verdict == "refused" ? refused
                      : given.verdict == "taken" ? result.ok()
                                                 : result.ok() || (!refused && too_little(result.error()));
    EXPECT_TRUE(well) << given.option << " = " << given.value << " has to be " << given.verdict << ", "
                      << what << ": " << said;
    return result.ok();
}

Result<Receipt> ended(Transfer transfer) {
    auto result = transfer.wait_for(hang);
    if (result) return std::move(*result);
    return Error{ErrorCode::internal, "it hangs", {}, {}};
}

class Options : public groups::GroupTest {
protected:
    Options() {
        test::fill(from_.data(), size);
        path_ = folder.path + "/options";
        std::filesystem::create_directory(path_);
        std::ofstream(path_ + "/a", std::ios::binary) << from_;
        gpu_ = *context->allocate(Place::gpu(0), size);
        other_gpu_ = *context->allocate(Place::gpu(5), size);
    }

    // Bytes that are not there yet, however they got there before.
    void forget() {
        to_.assign(size, '\0');
        std::filesystem::remove(path_ + "/b");
        ASSERT_TRUE(ended(context->copy(Buffer::host(to_.data(), size), gpu_.buffer())));
        ASSERT_TRUE(ended(context->copy(Buffer::host(to_.data(), size), other_gpu_.buffer())));
    }

    std::string content(const Buffer& buffer) {
        std::string text(buffer.whole_file() ? size : buffer.size(), '\0');
        EXPECT_TRUE(ended(context->copy(buffer, Buffer::host(text.data(), text.size()))));
        return text;
    }

    Buffer host_source() { return Buffer::host(from_.data(), size); }
    Buffer host_target() { return Buffer::host(to_.data(), size); }

    std::string from_ = std::string(size, '\0');
    std::string to_ = std::string(size, '\0');
    std::string path_;
    Allocation gpu_, other_gpu_;
};

TEST_F(Options, OfCopiesAndRoutes) {
    ASSERT_TRUE(ended(context->copy(host_source(), gpu_.buffer())));
    const Buffer a = Buffer::file(path_ + "/a");
    const Buffer b = Buffer::file(path_ + "/b");
    for (const OptionCase& given : cases) {
        if (given.where != "shared" && given.where != "copy") continue;
        const auto options = copy_options(given);
        if (!options) continue;
        const std::pair<Buffer, Buffer> ways[] = {{a, b},
                                                  {a, gpu_.buffer()},
                                                  {a, host_target()},
                                                  {host_source(), b},
                                                  {host_source(), gpu_.buffer()},
                                                  {host_source(), host_target()}};
        for (const auto& [from, to] : ways) {
            forget();
            const std::string what = from.to_string() + " to " + to.to_string();
            if (!expect(given, ended(context->copy(from, to, *options)), what)) continue;
            EXPECT_TRUE(content(to) == from_) << given.option << " = " << given.value << ", " << what;
        }
        forget();
        ASSERT_TRUE(ended(context->copy(host_source(), gpu_.buffer())));
        if (expect(given, ended(context->copy(gpu_.buffer(), other_gpu_.buffer(), *options)), "of GPUs")) {
            EXPECT_TRUE(content(other_gpu_.buffer()) == from_) << given.option << " = " << given.value;
        }
        forget();
        const std::vector<BatchItem> items{{a, b}, {a, gpu_.buffer()}, {host_source(), host_target()}};
        if (expect(given, ended(context->copy_batch(items, *options)), "a batch")) {
            for (const BatchItem& item : items) EXPECT_TRUE(content(item.to) == from_) << item.to.to_string();
        }
        expect(given, context->route(Place::gpu(0), Place::gpu(5), size, *options), "a route of places");
        expect(given, context->route(a, gpu_.buffer(), *options), "a route of buffers");
    }
}

TEST_F(Options, OfSavesAndLoads) {
    const std::vector<TensorToSave> tensors{{"x", Dtype::u8, {size}, host_source()},
                                            {"y", Dtype::u8, {size}, host_source()}};
    const std::string one = path_ + "/m.safetensors";
    ASSERT_TRUE(ended(context->save(tensors, one)));
    const auto checkpoint = Checkpoint::open(one);
    ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
    for (const OptionCase& given : cases) {
        const bool shared = given.where == "shared";
        CheckpointOptions opening;
        if (shared && given.option == "deadline" && set(opening.deadline, given.value))
            expect(given, Checkpoint::open(one, opening), "opening");
        if (const auto options = shared || given.where == "load" ? load_options(given) : std::nullopt) {
            for (const auto& places :
                 {std::vector{Place::gpu(0), Place::gpu(1)}, std::vector{Place::host()}}) {
                LoadOptions how = *options;
                how.to = places;
                if (how.layout == Layout::by_axis) how.rules = {{"x", 0}};
                Loading loading = context->load(*checkpoint, how);
                const auto loaded = loading.wait_for(hang);
                ASSERT_TRUE(loaded) << given.option << " = " << given.value << " hangs";
                if (!expect(given, *loaded, "a load")) continue;
                for (const LoadedTensor& tensor : (*loaded)->tensors(places.back()))
                    EXPECT_TRUE(content(tensor.buffer) == from_.substr(tensor.first, tensor.buffer.size()))
                        << given.option << " = " << given.value;
            }
        }
        if (const auto options = shared || given.where == "save" ? save_options(given) : std::nullopt) {
            const std::string to = options->shard_bytes > 0 ? path_ + "/shards" : path_ + "/n.safetensors";
            std::filesystem::remove_all(to);
            if (options->shard_bytes > 0) std::filesystem::create_directory(to);
            if (!expect(given, ended(context->save(tensors, to, *options)), "a save")) continue;
            const auto written = Checkpoint::open(to);
            ASSERT_TRUE(written) << written.error().to_string();
            EXPECT_EQ(written->bytes(), 2 * size);
        }
    }
}

TEST_F(Options, OfContexts) {
    for (const OptionCase& given : cases) {
        if (given.where != "context") continue;
        ContextOptions options{.machine = "dgx-h100"};
        if (!set(options.relay_memory, given.value)) continue;
        auto opened = Context::open(options);
        if (!expect(given, opened, "a context")) continue;
        const Allocation memory = *opened->allocate(Place::gpu(0), size);
        expect(given, ended(opened->copy(host_source(), memory.buffer())), "a copy");
        expect(given, opened->set_relay_memory(Place::gpu(1), options.relay_memory), "set_relay_memory");
    }
}

TEST_F(Options, OfGroups) {
    for (const OptionCase& given : cases) {
        const auto options = given.where == "group" ? group_options(given) : std::nullopt;
        if (!options) continue;
        auto made = Group::local(*context, groups::gpus(2), *options);
        if (!expect(given, made, "a group")) continue;
        std::string sums(2, '\0');
        groups::on_all(*made, [&](Group& group) {
            auto done = group.barrier();
            if (done) done = group.wait();
            expect(given, done, "a barrier");
        });
    }
    // Those of a group that is made of another one are looked at before the others are asked.
    auto groups = make(2);
    for (Group& group : groups) {
        EXPECT_EQ(group.split(0, 0, {.max_blocks = -1}).error().message, "max_blocks is -1");
        EXPECT_EQ(group.shrink({}, {.max_blocks = -1}).error().message, "max_blocks is -1");
    }
}

TEST_F(Options, TellRangeAndUnit) {
    CopyOptions options;
    options.chunk = Buffer::whole;
    const auto ended = context->copy(host_source(), gpu_.buffer(), options).wait();
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().to_string(),
              "chunk is 18446744073709551615 bytes (options). it may be 0 (the library chooses) to "
              "1099511627776 bytes");
    EXPECT_EQ(refused_option("deadline", "-inf s").to_string(),
              "deadline is -inf s (options). it may be 0 (none) to 31536000000 ms");
    EXPECT_EQ(refused_option("verify", "soon").to_string(), "verify is soon (options)");
}

}  // namespace
}  // namespace sidestep
