# tandem_module(NAME [DEPS module...] [LIBS target...] SOURCES file...)
#   One static library per module. DEPS are the tandem modules whose headers it may include (checked by the
#   "layers" test against every #include); LIBS are third-party targets, private to its sources.
# tandem_test(NAME [DEPS module...] [LIBS target...] SOURCES file...)
#   One GoogleTest binary, one ctest per binary.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_library(tandem_flags INTERFACE)
target_compile_options(tandem_flags INTERFACE -Wall -Wextra -Werror -Wshadow -Wnon-virtual-dtor
  # One rounding per operation everywhere, so that kernels of every width agree to the bit.
  -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 miscompiles coroutines; it has false positives in -Wmaybe-uninitialized and -Wrestrict at -O3.
  target_compile_options(tandem_flags INTERFACE -fno-coroutines -Wno-restrict)
endif()
if(TANDEM_SANITIZE)
  target_compile_options(tandem_flags INTERFACE -fsanitize=${TANDEM_SANITIZE} -fno-omit-frame-pointer -g)
  target_link_options(tandem_flags INTERFACE -fsanitize=${TANDEM_SANITIZE})
  if(TANDEM_SANITIZE MATCHES "thread")
    target_compile_options(tandem_flags INTERFACE -Wno-tsan)
  endif()
endif()
target_include_directories(tandem_flags INTERFACE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})

function(tandem_module name)
  cmake_parse_arguments(ARG "" "" "DEPS;LIBS;SOURCES" ${ARGN})
  add_library(tandem_${name} STATIC ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPS PREPEND tandem_ OUTPUT_VARIABLE deps)
  target_link_libraries(tandem_${name} PUBLIC tandem_flags ${deps} absl::status absl::statusor fmt::fmt
    PRIVATE ${ARG_LIBS} Threads::Threads)
  set_property(GLOBAL APPEND PROPERTY TANDEM_MODULES ${name})
  set_property(GLOBAL PROPERTY TANDEM_DEPS_${name} "${ARG_DEPS}")
  set_property(GLOBAL PROPERTY TANDEM_DIR_${name} ${CMAKE_CURRENT_SOURCE_DIR})
endfunction()

add_custom_target(unit_tests)  # every GoogleTest binary, for the sanitizer presets

function(tandem_test name)
  cmake_parse_arguments(ARG "" "" "DEPS;LIBS;SOURCES" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPS PREPEND tandem_ OUTPUT_VARIABLE deps)
  target_link_libraries(${name} PRIVATE ${deps} tandem_flags ${ARG_LIBS} GTest::gtest GTest::gtest_main Threads::Threads)
  target_compile_definitions(${name} PRIVATE TANDEM_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data")
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 LABELS unit)
  add_dependencies(unit_tests ${name})
endfunction()
