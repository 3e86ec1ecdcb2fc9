// The parts of sidestep.h about other processes and machines.
#include <utility>

#include "base/try.hpp"
#include "context/c_api.hpp"
#include "context/option_ranges.hpp"

using namespace sidestep::context::capi;
using sidestep::Error;
using sidestep::ErrorCode;
using sidestep::Result;

struct sidestep_publication {
    sidestep::Publication publication;
};

struct sidestep_serving {
    sidestep::Serving serving;
};

namespace {

std::string text_of(const char* text) {
    return text != nullptr ? text : "";
}

Result<sidestep::ServeOptions> read_options(const sidestep_serve_options* given) {
    SIDESTEP_TRY(auto read, read_struct(given, sidestep_serve_options SIDESTEP_SERVE_OPTIONS,
                                        sizeof(sidestep_serve_options), "sidestep_serve_options"));
    sidestep::ServeOptions options;
    if (read.listen != nullptr) options.listen = read.listen;
    options.allow = text_of(read.allow);
    options.key_file = text_of(read.key_file);
    options.name = text_of(read.name);
    options.metrics = text_of(read.metrics);
    options.notifications = read.notifications;
    options.rate = read.rate;
    return options;
}

}  // namespace

extern "C" {

sidestep_status sidestep_connect(sidestep_context* context, const char* node, const char* address) {
    return guarded([&]() -> Result<void> {
        if (context == nullptr) return null_argument("context");
        if (node == nullptr) return null_argument("node");
        if (address == nullptr) return null_argument("address");
        SIDESTEP_CHECK(context->context.connect(node, address));
        return {};
    });
}

sidestep_status sidestep_serve(sidestep_context* context, const sidestep_serve_options* options,
                               sidestep_serving** serving) {
    return guarded([&]() -> Result<void> {
        if (context == nullptr) return null_argument("context");
        if (serving == nullptr) return null_argument("serving");
        SIDESTEP_TRY(const auto read, read_options(options));
        SIDESTEP_TRY(auto started, context->context.serve(read));
        *serving = new sidestep_serving{std::move(started)};
        return {};
    });
}

void sidestep_serving_free(sidestep_serving* serving) {
    delete serving;
}

const char* sidestep_serving_address(const sidestep_serving* serving, size_t index) {
    if (serving == nullptr || index >= serving->serving.addresses().size()) return nullptr;
    return serving->serving.addresses()[index].c_str();
}

const char* sidestep_serving_key_file(const sidestep_serving* serving) {
    return serving != nullptr ? serving->serving.key_file().c_str() : nullptr;
}

sidestep_status sidestep_notify(sidestep_context* context, const char* node, const void* text, size_t size) {
    return guarded([&]() -> Result<void> {
        if (context == nullptr) return null_argument("context");
        if (node == nullptr) return null_argument("node");
        if (text == nullptr && size > 0) return null_argument("text");
        return context->context.notify(node, {static_cast<const char*>(text), size});
    });
}

sidestep_status sidestep_next_notification(sidestep_serving* serving, uint64_t wait_ms, char** from,
                                           char** text, size_t* size) {
    return guarded([&]() -> Result<void> {
        if (serving == nullptr) return null_argument("serving");
        if (text == nullptr) return null_argument("text");
        constexpr auto longest = static_cast<std::uint64_t>(sidestep::longest_limit.count());
        SIDESTEP_TRY(auto next, serving->serving.next_notification(
                                    std::chrono::milliseconds(std::min(wait_ms, longest))));
        if (size != nullptr) *size = next.text.size();
        if (from != nullptr) static_cast<void>(hand_out(next.from, from));
        return hand_out(next.text, text);
    });
}

sidestep_status sidestep_publish(sidestep_context* context, const char* name, const sidestep_buffer* buffer,
                                 uint64_t deadline_ms, sidestep_publication** publication) {
    return guarded([&]() -> Result<void> {
        if (context == nullptr) return null_argument("context");
        if (name == nullptr) return null_argument("name");
        if (publication == nullptr) return null_argument("publication");
        SIDESTEP_TRY(auto memory, read_buffer(buffer, "buffer"));
        if (deadline_ms == SIDESTEP_NO_LIMIT) deadline_ms = 0;
        SIDESTEP_CHECK(sidestep::context::check("deadline", deadline_ms));
        SIDESTEP_TRY(auto published,
                     context->context.publish(name, memory, {std::chrono::milliseconds(deadline_ms)}));
        *publication = new sidestep_publication{std::move(published)};
        return {};
    });
}

void sidestep_publication_free(sidestep_publication* publication) {
    delete publication;
}

}  // extern "C"
