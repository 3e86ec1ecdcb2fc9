// Words and numbers as the page writes them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "bench/html/text.hpp"

namespace sidestep::bench::html {
namespace {

TEST(PageText, WhatHtmlReadsAsMarkupIsEscaped) {
    EXPECT_EQ(escape("a<b>&\"c'"), "a&lt;b&gt;&amp;&quot;c&#39;");
    EXPECT_EQ(escape("µs · 10 → ×\n\t"), "µs · 10 → ×\n\t");
}

TEST(PageText, BytesThatAreNoTextAreReplaced) {
    const std::string bad = "\xef\xbf\xbd";
    EXPECT_EQ(escape("a\x01z"), std::string("a").append(bad).append("z"));
    EXPECT_EQ(escape("\xff"), bad);
    EXPECT_EQ(escape("\xc3"), bad);                      // cut off
    EXPECT_EQ(escape("\xc0\x80"), bad + bad);            // an overlong zero
    EXPECT_EQ(escape("\xed\xa0\x80"), bad + bad + bad);  // half of a surrogate pair
    EXPECT_EQ(escape("\xf0\x9f\x9a\x80"), "\xf0\x9f\x9a\x80");
    EXPECT_EQ(escape(std::string_view("\0", 1)), bad);
}

TEST(PageText, NumbersHaveThreeDigits) {
    EXPECT_EQ(number(0), "0");
    EXPECT_EQ(number(394.4), "394");
    EXPECT_EQ(number(55.4), "55.4");
    EXPECT_EQ(number(1.1), "1.10");
    EXPECT_EQ(number(0.0123), "0.0123");
    EXPECT_EQ(number(1170), "1,170");
    EXPECT_EQ(number(1234567), "1,234,567");
    EXPECT_EQ(number(-1234.5), "-1,234");
    EXPECT_EQ(number(999.7), "1,000");
    EXPECT_EQ(number(1e-9), "1e-09");
    EXPECT_EQ(number(std::nan("")), "no number");
    EXPECT_EQ(number(std::numeric_limits<double>::infinity()), "no number");
    EXPECT_EQ(percent(0.994), "99.4 %");
    EXPECT_EQ(percent(std::nan("")), "no number");
}

TEST(PageText, AFigureIsToldWhole) {
    Figure figure;
    figure.what = "gpu:0 -> gpu:1";
    figure.bytes = Bytes{1} << 30;
    figure.unit = "GB/s";
    figure.measured = {{392, 394, 395}};
    figure.limit = 396;
    figure.limit_source = "link";
    figure.peers = {{"loop", {{395}}}};
    figure.threshold = 390;
    figure.verdict = Verdict::pass;
    figure.path = "copy engine";
    EXPECT_EQ(
        describe(figure),
        "gpu:0 -> gpu:1 · 1 GiB · 394 GB/s [392 .. 395], 3 samples · 99.5 % of 396 GB/s (link) · loop 395 · "
        "threshold at least 390: passed · path copy engine");
    figure.more_is_better = false;
    figure.verdict = Verdict::fail;
    EXPECT_NE(describe(figure).find("threshold at most 390: failed"), std::string::npos);
    EXPECT_EQ(describe({}), "no samples ");
}

TEST(PageText, AShareNeedsALimitAndSamples) {
    Figure figure;
    figure.measured = {{5}};
    EXPECT_FALSE(has_share(figure));
    figure.limit = 10;
    EXPECT_TRUE(has_share(figure));
    for (const double value : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
        figure.limit = value;
        EXPECT_FALSE(has_share(figure)) << value;
    }
    figure.limit = 10;
    figure.measured = {};
    EXPECT_FALSE(has_share(figure));
}

TEST(PageText, NothingInJsonEndsItsElement) {
    EXPECT_EQ(json_for_script("{\"a\":\"</script><!--&\"}"),
              "{\"a\":\"\\u003c/script\\u003e\\u003c!--\\u0026\"}");
}

}  // namespace
}  // namespace sidestep::bench::html
