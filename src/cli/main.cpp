#include <iostream>

#include "cli/program.h"

int main(int argument_count, char** arguments) {
  return ithaca::run_program(argument_count, arguments, std::cout, std::cerr);
}
