// make_page example|large|hostile|empty FILE: writes the page of a report made up for tests.
#include <fstream>
#include <iostream>
#include <string>

#include "bench/report.hpp"
#include "tests/unit/bench/example_reports.hpp"

int main(int count, char** words) {
    using namespace sidestep::bench;
    if (count != 3) {
        std::cerr << "make_page example|large|hostile|empty FILE\n";
        return 2;
    }
    const std::string which = words[1];
    const Report report = which == "example"   ? example_report()
                          : which == "large"   ? large_report()
                          : which == "hostile" ? hostile_report()
                                               : Report{};
    std::ofstream file(words[2], std::ios::binary);
    file << to_html(report);
    file.close();
    return file.good() ? 0 : 1;
}
