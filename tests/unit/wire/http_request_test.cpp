// What a page over HTTP is asked for.
#include "wire/http_request.hpp"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace sidestep::wire {
namespace {

TEST(HttpRequest, WhatIsAsked) {
    const std::vector<std::pair<std::string, Asked>> cases = {
        {"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", Asked::page},
        {"GET /metrics HTTP/1.0\n\n", Asked::page},
        {"GET /metrics HTTP/1.1\r\n\r\nbehind", Asked::page},
        {"GET / HTTP/1.1\r\n\r\n", Asked::elsewhere},
        {"GET /metrics/ HTTP/1.1\r\n\r\n", Asked::elsewhere},
        {"GET /metricsx HTTP/1.1\r\n\r\n", Asked::elsewhere},
        {"GET /metrics?a=1 HTTP/1.1\r\n\r\n", Asked::elsewhere},
        {"GET /../metrics HTTP/1.1\r\n\r\n", Asked::elsewhere},
        {"POST /metrics HTTP/1.1\r\n\r\n", Asked::nonsense},
        {"HEAD /metrics HTTP/1.1\r\n\r\n", Asked::nonsense},
        {"get /metrics HTTP/1.1\r\n\r\n", Asked::nonsense},
        {"GET /metrics\r\n\r\n", Asked::nonsense},
        {"GET /metrics HTTP/2\r\n\r\n", Asked::nonsense},
        {"GET  /metrics HTTP/1.1\r\n\r\n", Asked::nonsense},
        {"GET /metrics HTTP/1.1 \r\n\r\n", Asked::nonsense},
        {"GET http://a/metrics HTTP/1.1\r\n\r\n", Asked::nonsense},
        {"\r\n\r\n", Asked::nonsense},
        {std::string("GET /metrics\0 HTTP/1.1\r\n\r\n", 26), Asked::elsewhere}};
    for (const auto& [text, asked] : cases) EXPECT_EQ(parse_request(text), asked) << text;
}

TEST(HttpRequest, WaitsForTheWholeHead) {
    const std::string all = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
    for (std::size_t size = 0; size < all.size(); ++size)
        EXPECT_EQ(parse_request(all.substr(0, size)), std::nullopt) << size;
    EXPECT_EQ(parse_request(all), Asked::page);
}

TEST(HttpRequest, AnswersSayHowLongTheyAre) {
    EXPECT_EQ(http_answer(Asked::page, "a 1\n"),
              "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
              "Content-Length: 4\r\nConnection: close\r\n\r\na 1\n");
    for (const auto& [asked, status] :
         {std::pair(Asked::elsewhere, "404"), std::pair(Asked::nonsense, "400")}) {
        const std::string answer = http_answer(asked, "secret");
        EXPECT_EQ(answer.substr(0, 12), std::string("HTTP/1.1 ") + status);
        EXPECT_EQ(answer.find("secret"), std::string::npos);
    }
}

}  // namespace
}  // namespace sidestep::wire
