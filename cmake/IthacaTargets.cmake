# How the targets of Ithaca are made: one library per folder of src/, tests beside their sources.
#
#   ithaca_library(base SOURCES error.cpp ... [PUBLIC ithaca::tensor ...] [PRIVATE fmt::fmt ...])
#   ithaca_test(base_test SOURCES error_test.cpp ... [LINK ithaca::base ...] [LABELS unit] [TIMEOUT 60])

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_library(ithaca_flags INTERFACE)
target_compile_features(ithaca_flags INTERFACE cxx_std_20)
target_compile_options(ithaca_flags INTERFACE -Wall -Wextra -Wpedantic $<$<BOOL:${ITHACA_WARNINGS_AS_ERRORS}>:-Werror>)
# g++ 12 sees overlapping copies in `"text" + std::string` where there are none (GCC bug 105651).
target_compile_options(ithaca_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
# Results must not depend on the compiler's whim: no contraction of a*b+c into one rounding outside of the SIMD kernels that ask for it.
target_compile_options(ithaca_flags INTERFACE -ffp-contract=off)
if(ITHACA_SANITIZE)
  target_compile_options(ithaca_flags INTERFACE -fsanitize=${ITHACA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(ithaca_flags INTERFACE -fsanitize=${ITHACA_SANITIZE})
endif()

function(ithaca_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(ithaca_${name} STATIC ${ARG_SOURCES})
  add_library(ithaca::${name} ALIAS ithaca_${name})
  target_include_directories(ithaca_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(ithaca_${name} PUBLIC ${ARG_PUBLIC} PRIVATE ithaca_flags ${ARG_PRIVATE})
  target_compile_features(ithaca_${name} PUBLIC cxx_std_20)
endfunction()

# The limit of a test, in seconds. It is there for hangs, not for speed: instrumented programs take several times as long,
# and more on a busy machine.
function(ithaca_time_limit result seconds)
  if(ITHACA_SANITIZE)
    math(EXPR seconds "4 * ${seconds}")
  endif()
  set(${result} ${seconds} PARENT_SCOPE)
endfunction()

function(ithaca_test name)
  if(NOT ITHACA_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ithaca_flags ${ARG_LINK} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE ITHACA_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data"
                             ITHACA_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  include(GoogleTest)
  ithaca_time_limit(limit ${ARG_TIMEOUT})
  gtest_discover_tests(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${limit} DISCOVERY_TIMEOUT 60)
endfunction()
