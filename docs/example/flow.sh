#!/bin/sh
# A flow of connector steps: lists the notes, reads each, and says what is open.
# Needs a running `sandboxd serve --config config.yaml`; SANDBOXD_SERVER says
# where if not on 127.0.0.1:8787.
set -eu
sandboxd=${SANDBOXD:-sandboxd}

# step ACTION ARGUMENTS prints the result's content. A step that fails ends the
# flow: call's exit status is 1 then.
step() {
	result=$("$sandboxd" call notes "$1" "$2")
	printf '%s\n' "${result%%\"structuredContent\"*}"   # the same again
}

names=$(step list_directory '{"path": "/notes"}')
total=0
for note in $(printf '%s' "$names" | grep -o '[a-z0-9-]*\.md'); do
	text=$(step read_text_file "{\"path\": \"/notes/$note\"}")
	open=$(printf '%s' "$text" | grep -o -F -e '- [ ]' | wc -l)
	echo "$note: $((open)) open"
	total=$((total + open))
done
echo "together: $total open"
