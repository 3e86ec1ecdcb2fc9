#compdef sidestep
# Completion of the command `sidestep` for zsh; the command itself says what may follow.
# To use it: sidestep completion zsh > "${fpath[1]}/_sidestep", or source <(sidestep completion zsh)

_sidestep() {
    local line word
    local -a typed whole shown open opened
    typed=("${(@Q)words[2,CURRENT - 1]}" "${(Q)PREFIX}")
    for line in "${(@f)$("${words[1]}" completion words -- "${typed[@]}" 2>/dev/null)}"; do
        [[ -z $line ]] && continue
        if [[ $line == ':program '* ]]; then
            local skipped=$((${line#:program } + 1))
            shift $skipped words
            ((CURRENT -= skipped))
            _normal
            return
        fi
        word=${line%%$'\t'*}
        # One goes on typing behind a folder, a scheme and an equals sign.
        if [[ $word == *[:/=] ]]; then
            open+=("$word") opened+=("${line/$'\t'/  -- }")
        else
            whole+=("$word") shown+=("${line/$'\t'/  -- }")
        fi
    done
    compadd -l -d shown -- "${whole[@]}"
    compadd -l -S '' -d opened -- "${open[@]}"
}

# As a file of fpath it is called at once; sourced, it is registered.
if [[ ${funcstack[1]} == _sidestep ]]; then _sidestep "$@"; else compdef _sidestep sidestep; fi
