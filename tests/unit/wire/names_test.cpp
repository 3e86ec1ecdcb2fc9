// Messages with names of files, and notifications: their bounds; names of engines.
#include "wire/messages.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sidestep/network.hpp>
#include "wire/engines.hpp"

namespace sidestep::wire {
namespace {

// A folder with more names than go into one message is told in parts.
TEST(WireMessages, NamesAreCutToAMessage) {
    Names all;
    for (int i = 0; i < 10'000; ++i)
        all.names.push_back("model-" + std::to_string(10'000 + i) + ".safetensors");
    std::vector<std::string> told;
    for (int parts = 0; told.size() < all.names.size(); ++parts) {
        ASSERT_LT(parts, 100);
        const std::string body =
            to_body(Names{{all.names.begin() + static_cast<long>(told.size()), all.names.end()}});
        ASSERT_LT(body.size() + 64, longest_message);
        const auto part = parse_names(body);
        ASSERT_TRUE(part.ok());
        ASSERT_FALSE(part->names.empty());
        told.insert(told.end(), part->names.begin(), part->names.end());
        EXPECT_EQ(part->all, told.size() == all.names.size());
    }
    EXPECT_EQ(told, all.names);
}

// They come sorted, or again and again: neither goes on for good.
TEST(WireMessages, ANodeThatHasNamesWithoutEndIsRefused) {
    for (const bool again : {false, true}) {
        int asked = 0;
        const auto all = ask_for_names("/models", [&](const std::string& body) -> Result<std::string> {
            if (++asked > 2 * most_lists) return Error{ErrorCode::internal, "it went on", "test", {}};
            const auto request = parse_list(body);
            EXPECT_TRUE(request && request->folder == "/models");
            return to_body(Names{{again ? "a" : request->after.substr(0, 8) + std::to_string(asked)}, false});
        });
        ASSERT_FALSE(all);
        EXPECT_EQ(all.error().code, ErrorCode::unsupported) << all.error().to_string();
        EXPECT_EQ(asked, most_lists);
    }
}

TEST(WireMessages, NotificationsHaveABound) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, longest_notification}) {
        const std::string text(size, '\0');
        const auto came = parse_text(to_text_body(text));
        ASSERT_TRUE(came.ok()) << size;
        EXPECT_EQ(*came, text);
    }
    EXPECT_FALSE(parse_text(to_text_body(std::string(longest_notification + 1, 'x'))).ok());
}

TEST(WireEngines, TheFirstOfTheClientsThatTheNodeHas) {
    using Names = std::vector<std::string>;
    const struct {
        Names client, node;
        const char* common;
    } cases[] = {{{"verbs", "tcp"}, {"verbs", "tcp"}, "verbs"},
                 {{"verbs", "tcp"}, {"tcp"}, "tcp"},
                 {{"tcp"}, {"verbs", "tcp"}, "tcp"},
                 {{"tcp", "verbs"}, {"verbs", "tcp"}, "tcp"},
                 {{"verbs"}, {"tcp"}, ""},
                 {{}, {"tcp"}, ""},
                 {{"tcp"}, {}, ""}};
    for (const auto& one : cases) EXPECT_EQ(common_engine(one.client, one.node), one.common);
}

}  // namespace
}  // namespace sidestep::wire
