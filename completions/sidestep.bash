# Completion of the command `sidestep` for bash; the command itself says what may follow.
# To use it: source <(sidestep completion bash)

_sidestep() {
    # Bash itself would split gpu:0 at the colon.
    local line=${COMP_LINE:0:COMP_POINT} words word cut="" program
    read -ra words <<<"$line"
    [[ $line == *' ' ]] && words+=("")
    local typed=${words[-1]}
    # What bash put into a word of its own is not offered again.
    case $typed in *[:=]*) cut=${typed%"${typed##*[:=]}"} ;; esac
    COMPREPLY=()
    while IFS=$'\t' read -r word _; do
        if [[ $word == :program* ]]; then
            program=${word#:program }
            declare -F _command_offset >/dev/null && { _command_offset $((program + 1)); return; }
            while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -c -- "$typed")
            return
        fi
        word=${word#"$cut"}
        [[ $word == *[[:space:]]* ]] && printf -v word %q "$word"
        COMPREPLY+=("$word")
    done < <("${words[0]}" completion words -- "${words[@]:1}" 2>/dev/null)
    # One goes on typing behind a folder, a scheme and an equals sign.
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[:/=] ]] && compopt -o nospace 2>/dev/null
}

complete -F _sidestep sidestep
