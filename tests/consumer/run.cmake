# Installs the build into a fresh prefix, then configures, builds and runs a project that finds it there.
set(prefix ${work_dir}/prefix)
file(REMOVE_RECURSE ${work_dir})
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
run(${CMAKE_COMMAND} --install ${build_dir} --config ${config} --component development --prefix ${prefix})
run(${CMAKE_COMMAND} -S ${source_dir} -B ${work_dir}/build -G ${generator} -DCMAKE_CXX_COMPILER=${compiler}
    -DCMAKE_BUILD_TYPE=${config} -DCMAKE_PREFIX_PATH=${prefix})
run(${CMAKE_COMMAND} --build ${work_dir}/build)
run(${work_dir}/build/consumer)
