# Structure checks run as ctests: layers, every header compiles alone, file length, format.
# Targets format_fix and tidy go with them.

set(CMAKE_EXPORT_COMPILE_COMMANDS ON)  # for tidy

# Called once, after every module is declared.
function(tandem_add_checks)
  find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)
  find_program(CLANG_FORMAT_PROGRAM NAMES clang-format-19)
  find_program(CLANG_TIDY_PROGRAM NAMES clang-tidy-19)
  set(scripts ${CMAKE_SOURCE_DIR}/cmake)
  # The layers as the modules declared them, for check_layers.py: one line "name|directory|dependency dependency".
  get_property(modules GLOBAL PROPERTY TANDEM_MODULES)
  set(lines "")
  foreach(module IN LISTS modules)
    get_property(directory GLOBAL PROPERTY TANDEM_DIR_${module})
    get_property(deps GLOBAL PROPERTY TANDEM_DEPS_${module})
    file(RELATIVE_PATH directory ${CMAKE_SOURCE_DIR} ${directory})
    list(JOIN deps " " deps)
    string(APPEND lines "${module}|${directory}|${deps}\n")
  endforeach()
  file(WRITE ${CMAKE_BINARY_DIR}/modules.txt "${lines}")

  add_test(NAME layers COMMAND Python3::Interpreter ${scripts}/check_layers.py ${CMAKE_SOURCE_DIR}
    ${CMAKE_BINARY_DIR}/modules.txt)
  add_test(NAME file_length COMMAND Python3::Interpreter ${scripts}/check_length.py ${CMAKE_SOURCE_DIR})

  get_target_property(options tandem_flags INTERFACE_COMPILE_OPTIONS)
  get_target_property(includes tandem_flags INTERFACE_INCLUDE_DIRECTORIES)
  list(TRANSFORM includes PREPEND -I)
  add_test(NAME headers_compile_alone COMMAND Python3::Interpreter ${scripts}/check_headers.py ${CMAKE_SOURCE_DIR}
    ${CMAKE_BINARY_DIR}/check_headers ${CMAKE_CXX_COMPILER_LAUNCHER} ${CMAKE_CXX_COMPILER} -std=c++20 ${options}
    ${includes})

  if(CLANG_FORMAT_PROGRAM)
    set(check_format Python3::Interpreter ${scripts}/check_format.py ${CMAKE_SOURCE_DIR} ${CLANG_FORMAT_PROGRAM})
    add_test(NAME format COMMAND ${check_format})
    add_custom_target(format_fix COMMAND ${check_format} --fix COMMENT "Formatting every C++ file" VERBATIM)
  else()
    message(STATUS "clang-format-19 is not installed: no format test")
  endif()
  if(CLANG_TIDY_PROGRAM)
    add_custom_target(tidy COMMAND Python3::Interpreter ${scripts}/tidy_changed.py ${CMAKE_SOURCE_DIR}
      ${CMAKE_BINARY_DIR} ${CLANG_TIDY_PROGRAM} COMMENT "clang-tidy on the sources changed since HEAD~" VERBATIM)
  endif()
  add_test(NAME checks_find_faults COMMAND Python3::Interpreter ${scripts}/checks_test.py)
endfunction()
