// What a client asks a node, and tells it.
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "wire/peer.hpp"

namespace sidestep::wire {
namespace {

// Its answer names what the client has on the node from then on.
bool takes_something(Word word) {
    return word == Word::allocate || word == Word::attach || word == Word::take || word == Word::reach ||
           word == Word::trial;
}

}  // namespace

Result<std::string> Peer::ask(Word word, const std::string& body, Time until) {
    // The node would end the connection for it, and each one over which it is asked again.
    if (body.size() > longest_message - message_head)
        return Error{
            ErrorCode::invalid_argument, fmt::format("a path on {} is too long", name()), "network", {}};
    std::uint64_t number = 0;
    {
        std::lock_guard lock(mutex_);
        if (end_) return *end_;
        number = add_question(word, body, Question::Kind::asked);
    }
    send_those_due();
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, until, [&] { return questions_[number].answer || end_; });
    const auto answer = std::move(questions_[number].answer);
    if (!answer && !end_ && takes_something(word) && !waits_its_turn(number))
        questions_[number].kind = Question::Kind::given_up;
    else
        questions_.erase(number);
    if (answer) return parse_answer(*answer, name());
    return end_ ? *end_ : silent();
}

void Peer::tell(Word word, const std::string& body) {
    {
        std::lock_guard lock(mutex_);
        if (end_) return;  // the node lets go of all that this client has there
        add_question(word, body, Question::Kind::told);
    }
    send_those_due();
}

std::uint64_t Peer::add_question(Word word, const std::string& body, Question::Kind kind) {
    const std::uint64_t number = next_question_++;
    questions_[number] = {word, kind, to_message(Envelope{word, number, body})};
    unsent_.push_back(number);
    return number;
}

// Each in its turn, so with the mutex held while it is sent: whoever has told of memory that goes may ask for other memory
// next. Where the line is being replaced, they go over the next one.
void Peer::send_those_due() {
    std::lock_guard lock(mutex_);
    for (; !unsent_.empty(); unsent_.pop_front()) {
        const auto found = questions_.find(unsent_.front());
        if (found == questions_.end()) continue;  // nobody waits for it any more
        const Question& question = found->second;
        if (question.kind == Question::Kind::told) {
            if (told_ == most_told) break;
            ++told_;
        }
        if (!goes_on_) line_->channel->send(question.message);
    }
}

void Peer::heard(const std::shared_ptr<Line>& line, const std::string& message) {
    auto envelope = parse_envelope(message);
    if (envelope && envelope->word == Word::leave)
        return close(Error{ErrorCode::cancelled, fmt::format("{} has ended", name()), "control", {}});
    if (!envelope || envelope->word != Word::answer)
        return close(
            Error{ErrorCode::io_error, fmt::format("{} said what was not asked", name()), "control", {}});
    {
        std::lock_guard lock(mutex_);
        if (envelope->number == line->greeting && !line->greeted) {
            line->greeted = std::move(envelope->body);
            return changed_.notify_all();
        }
        take_answer(envelope->number, std::move(envelope->body));
    }
    send_those_due();
}

void Peer::take_answer(std::uint64_t number, std::string answer) {
    const auto found = questions_.find(number);
    if (found == questions_.end() || waits_its_turn(number)) return;
    Question& question = found->second;
    if (question.kind == Question::Kind::asked) {
        question.answer = std::move(answer);
        return changed_.notify_all();
    }
    if (question.kind == Question::Kind::told) --told_;
    if (question.kind == Question::Kind::given_up) give_back(question.word, answer);
    questions_.erase(found);
}

// Nobody else knows of it.
void Peer::give_back(Word word, const std::string& answer) {
    const auto body = parse_answer(answer, name());
    if (!body) return;
    if (word == Word::allocate) {
        if (const auto made = parse_allocated(*body))
            add_question(Word::free, to_body(made->address), Question::Kind::told);
    } else if (const auto made = parse_attached(*body); made && made->region != 0) {
        add_question(Word::detach, to_body(made->region), Question::Kind::told);
    }
}

}  // namespace sidestep::wire
