-- The firewall of examples/nginx-firewall for nginx's Lua module: the same rules and the same decoding.
local firewall = {}

local patterns = {}

function firewall.read(path)
    for line in io.lines(path) do
        if #line >= 4 and line:sub(1, 1) ~= "#" then
            patterns[#patterns + 1] = (line:lower():gsub("+", " "))
        end
    end
end

local function is_forbidden(text)
    text = text:lower():gsub("[+%c]", " ")
    for _ = 1, 2 do
        if not text:find("%", 1, true) then
            break
        end
        text = ngx.unescape_uri(text):lower():gsub("[+%c]", " ")
    end
    for i = 1, #patterns do
        if text:find(patterns[i], 1, true) then
            return true
        end
    end
    return false
end

function firewall.check()
    local line, path, agent = ngx.var.request_uri, ngx.var.uri, ngx.var.http_user_agent
    local arguments = ngx.var.args
    local plain_length = #path + (arguments and #arguments + 1 or 0)
    if is_forbidden(line) or (#line ~= plain_length and is_forbidden(path)) or (agent and is_forbidden(agent)) then
        return ngx.exit(ngx.HTTP_FORBIDDEN)
    end
end

return firewall
