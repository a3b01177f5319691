# cmake -DCOMMAND="program;argument;..." -DOUT=file -P WriteOutput.cmake: writes what the command
# prints to the file.
execute_process(COMMAND ${COMMAND} OUTPUT_FILE ${OUT} COMMAND_ERROR_IS_FATAL ANY)
