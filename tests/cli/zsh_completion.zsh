# zsh_completion.zsh LINE: types LINE and a tab into a zsh on a terminal of its own, and prints the line that stands there.
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'PS1= ; autoload -Uz compinit && compinit -u -D && source <(sidestep completion zsh)'
zpty -w shell 'show() { print -r -- "line<$BUFFER>" }; zle -N show; bindkey "^I" complete-word "^X" show; print rea""dy'
zpty -r shell output '*ready*'
zpty -n -w shell "$1"$'\t\x18'
zpty -r shell output '*line<*>*'
print -r -- "$output"
zpty -d shell
