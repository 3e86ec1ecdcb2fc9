#include "wire/metrics_page.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/try.hpp"
#include "wire/http_request.hpp"

namespace sidestep::wire {

Result<std::unique_ptr<MetricsPage>> MetricsPage::start(const HostPort& at,
                                                        std::function<std::string()> text) {
    std::unique_ptr<MetricsPage> page(new MetricsPage(std::move(text)));
    SIDESTEP_TRY(page->loop_, driver::EventLoop::create("the page of metrics"));
    SIDESTEP_CHECK(page->listen(at));
    return page;
}

MetricsPage::~MetricsPage() {
    if (loop_) loop_->end();
}

Result<void> MetricsPage::listen(const HostPort& at) {
    SIDESTEP_CHECK(listen_at(at, listeners_, addresses_));
    for (const driver::TcpListener& listener : listeners_) {
        SIDESTEP_TRY(const auto watch,
                     loop_->add(listener.number(), true, false,
                                [this, &listener](driver::EventLoop::Ready) { accept(listener); }));
        watches_.push_back(watch);
    }
    loop_->every(std::chrono::milliseconds(500), [this] { tick(); });
    return {};
}

void MetricsPage::accept(const driver::TcpListener& listener) {
    auto accepted = listener.accept();
    if (!accepted) {
        // It would be called again at once. tick() has it listen again.
        for (const auto watch : watches_) loop_->change(watch, false, false);
        full_ = true;
        return;
    }
    if (!*accepted) return;
    // As of those who want to be clients: who has been here longest has had its time.
    if (visitors_.size() >= most_visitors) drop(visitors_.begin()->first);
    const std::uint64_t number = next_++;
    const int socket = (*accepted)->number();
    visitors_.emplace(number, Visitor{std::move(**accepted), Clock::now()});
    auto watch =
        loop_->add(socket, true, false, [this, number](driver::EventLoop::Ready) { look_at(number); });
    if (!watch) {
        visitors_.erase(number);
        return;
    }
    visitors_.at(number).watch = *watch;
}

void MetricsPage::look_at(std::uint64_t number) {
    const auto found = visitors_.find(number);
    if (found == visitors_.end()) return;
    Visitor& visitor = found->second;
    if (visitor.answer.empty() && !take(visitor)) return drop(number);
    if (!visitor.answer.empty() && !give(visitor)) drop(number);
}

bool MetricsPage::take(Visitor& visitor) {
    std::array<char, longest_request> bytes;
    const auto came = visitor.socket.receive(bytes.data(), longest_request - visitor.came.size());
    if (came && !*came) return true;
    if (!came || **came == 0) return false;
    visitor.came.append(bytes.data(), static_cast<std::size_t>(**came));
    auto asked = parse_request(visitor.came);
    if (!asked && visitor.came.size() < longest_request) return true;
    visitor.answer = http_answer(asked.value_or(Asked::nonsense), asked == Asked::page ? text_() : "");
    // A connection that is closed with something unread is reset, and the answer may be lost with it.
    for (int reads = 0; reads < 16; ++reads) {
        const auto more = visitor.socket.receive(bytes.data(), bytes.size());
        if (!more || !*more || **more == 0) break;
    }
    return true;
}

bool MetricsPage::give(Visitor& visitor) {
    const driver::TcpSocket::Part part{visitor.answer.data() + visitor.gone,
                                       visitor.answer.size() - visitor.gone};
    const auto sent = visitor.socket.send({&part, 1});
    if (!sent) return false;
    visitor.gone += static_cast<std::size_t>(*sent);
    if (visitor.gone == visitor.answer.size()) return false;
    loop_->change(visitor.watch, false, true);
    return true;
}

void MetricsPage::drop(std::uint64_t number) {
    const auto found = visitors_.find(number);
    if (found == visitors_.end()) return;
    loop_->remove(found->second.watch);
    found->second.socket.shut_down();
    visitors_.erase(found);
}

void MetricsPage::tick() {
    if (std::exchange(full_, false))
        for (const auto watch : watches_) loop_->change(watch, true, false);
    std::vector<std::uint64_t> slow;
    for (const auto& [number, visitor] : visitors_)
        if (Clock::now() - visitor.since > patience) slow.push_back(number);
    for (const std::uint64_t number : slow) drop(number);
}

}  // namespace sidestep::wire
