# C++ tests: one executable a file of tests/cpp, every public header on its own, and a consumer of the installed package.

# --- Headers --------------------------------------------------------------------------------------------------------
set(header_units "")
foreach(header IN LISTS tide_headers ITEMS version.h)
  cmake_path(GET header FILENAME name)
  set(unit ${generated_dir}/header_test/${name}.cc)
  file(CONFIGURE OUTPUT ${unit} CONTENT "#include \"tide/${name}\"\n#include \"tide/${name}\"\n" @ONLY)
  list(APPEND header_units ${unit})
endforeach()
add_library(header_test OBJECT ${header_units})
target_link_libraries(header_test PRIVATE tide::tide tide_warnings)

# --- Unit and process tests -----------------------------------------------------------------------------------------
file(GLOB test_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/cpp/*_test.cc)
find_package(GTest QUIET)
if(NOT GTest_FOUND)
  list(APPEND left_out "the C++ tests (GoogleTest was not found: install libgtest-dev)")
else()
  include(GoogleTest)
  # Tests of the pure layers and the kernels, which are quick under a sanitizer; the others start processes, or wait for
  # deadlines.
  add_custom_target(core_tests)
  foreach(source IN LISTS test_sources)
    cmake_path(GET source STEM stem)
    add_executable(${stem} ${source})
    target_link_libraries(${stem} PRIVATE tide_internal GTest::gtest_main GTest::gtest)
    target_include_directories(${stem} PRIVATE ${PROJECT_SOURCE_DIR}/tests/cpp)
    target_compile_definitions(${stem} PRIVATE TIDE_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                               TIDE_COMMAND="${PROJECT_BINARY_DIR}/tide")
    if(stem MATCHES "session|fabric|drill|node|launch|cli|crash|process|store")
      set(label process)
      set(processors 2) # their ranks share the machine among themselves
      if(TARGET tide_cli)
        add_dependencies(${stem} tide_cli)
      endif()
    else()
      set(label core)
      set(processors 1)
      add_dependencies(core_tests ${stem})
    endif()
    gtest_discover_tests(${stem} TEST_PREFIX ${stem}. DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 NO_PRETTY_VALUES
                         PROPERTIES TIMEOUT 120 LABELS ${label} PROCESSORS ${processors})
  endforeach()
endif()

# --- The installed package ------------------------------------------------------------------------------------------
# A consumer is built by the plain compiler, so a library full of sanitizer calls is not for it.
if(NOT TIDE_SANITIZE)
  add_test(
    NAME consumer.find_package
    COMMAND
      ${CMAKE_COMMAND} -D build_dir=${PROJECT_BINARY_DIR} -D source_dir=${PROJECT_SOURCE_DIR}/tests/consumer -D
      work_dir=${PROJECT_BINARY_DIR}/consumer -D generator=${CMAKE_GENERATOR} -D compiler=${CMAKE_CXX_COMPILER} -D
      config=$<CONFIG> -P ${PROJECT_SOURCE_DIR}/tests/consumer/run.cmake)
  set_tests_properties(consumer.find_package PROPERTIES TIMEOUT 180 LABELS package)
endif()
