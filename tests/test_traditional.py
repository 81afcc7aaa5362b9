"Pages in Traditional Chinese: what OpenCC and the words of translations/zh-hant.yml make of a text and of a page."

import re

import pytest
import traditional
from cells import joined
from lxml.html import document_fromstring, tostring
from traditional import SAYS, convert
from translate import notebook

EXPECTED = {  # a text in Simplified Chinese, and in Traditional
    "残差连接把映射后的参数相加": "殘差連接把映射後的參數相加",
    "矩阵的每一行（row）是一个查询，每一列（column）是一个键": "矩陣的每一列（row）是一個查詢，每一行（column）是一個鍵",
    "用行向量（row vector）；每行一个句子，代码200行": "用列向量（row vector）；每行一個句子，程式碼200行",
    "矩阵的每行和矩阵的第一列；行之和、行和列、列向量": "矩陣的每列和矩陣的第一行；列之和、列和行、行向量",
    "进行向量运算；序列之和；排列向量；逐行列出；一行代码": "進行向量運算；序列之和；排列向量；逐行列出；一行程式碼",
    "激活函数是非线性函数；Python函数的函数名": "激活函數是非線性函數；Python函式的函式名",
    "循环神经网络；不用for循环的训练循环": "循環神經網路；不用for迴圈的訓練迴圈",
    "“it”的‘权重’决定": "「it」的『權重』決定",
    "随机失活（dropout）之后，随机失活": "dropout（隨機失活）之後，dropout",
    "（dropout）之后": "（隨機失活）之後",  # the word before is a link
    "因果掩码屏蔽后面的词元，得分做归一化": "因果遮罩遮蔽後面的詞元，得分做正規化",
    "把程序装进程序包，两个进程并行": "把程式裝進套件，兩個行程平行",
    "软件包中的函数，一个几行长的函数；文件的校验和": "套件中的函式，一個幾行長的函式；檔案的總和檢查碼",
    "得分要在线段中间，乘在线性层上": "得分要在線段中間，乘在線性層上",
    "推导出了这个结论，再导出模型": "推導出了這個結論，再匯出模型",
    "钟的指针；关注对象；二分查找；算子": "鐘的指針；關注對象；二分搜尋；運算子",
    "一部分词元是过去分词；用分词器切分词元": "一部分詞元是過去分詞；用斷詞器切分詞元",
    "冠词表示性；名词组成短语；声明了；检查看到": "冠詞表示性；名詞組成片語；宣告了；檢查看到",
    "主语从句；从句法树得出；条形图；连字符": "主詞子句；從句法樹得出；長條圖；連字號",
    "在从句中，关系从句；这样的分句，一部分句子，要先分句，成分句法树": "在從屬子句中，關係子句；這樣的子句，一部分句子，要先分句，成分句法樹",
    "排成分句（clause）；那只动物，那只是；今天给医生打电话": "排成子句（clause）；那隻動物，那只是；今天打電話給醫生",
    "第一条信息，打印这些信息，打印在一行信息里，帮助信息；位置的信息": "第一條訊息，列印這些訊息，列印在一行訊息裡，說明訊息；位置的資訊",
    "显存分配器，显存块": "顯示記憶體配置器，顯示記憶體區塊",
    "CUDA内核，CPU的融合内核；有GPU的运行时，GPU的运行时间": "CUDA kernel，CPU的融合核心；有GPU的執行階段，GPU的執行時間",
    "代码单元，第一个单元会安装；一个隐藏单元，单元格": "程式碼儲存格，第一個儲存格會安裝；一個隱藏單元，儲存格",
    "单个名词，单个的单词，菜单个数": "單一名詞，個別的單字，選單個數",
    "遗忘门、输入门与门控；专门一道门槛": "遺忘閘、輸入閘與閘控；專門一道門檻",
    "源句与源序列；开源的资源；同源词": "來源句與來源序列；開源的資源；同源詞",
    "这个类；数据类与数据类型；两个数据集、一个数组": "這個類別；資料類別與資料型別；兩個資料集、一個陣列",
    "这条报错见《报错信息》；程序不报错": "這條錯誤訊息見《錯誤訊息》；程式不報錯",
    "两个CPU核；两个核大小为1的卷积核": "兩個CPU核心；兩個核大小為1的卷積核",
    "随机数与随机数据；标准正态分布；配对检验": "亂數與隨機資料；標準常態分佈；配對檢定",
    "算法如下；这种算法；训练，用时一分钟；调用时": "算法如下；這種演算法；訓練，耗時一分鐘；呼叫時",
    "只通过偏置；句子通过模型；只通过一个专家": "只透過偏置；句子通過模型；只通過一個專家",
    "打印；打印出来；不需要循环，循环网络": "列印；印出來；不需要迴圈，循環網路",
    "结果支持预热；支持CUDA；最先尝试；视图": "結果支持預熱；支援CUDA；最先嘗試；視圖",
    "也不是只传一个，在样本里只有第一个": "也不是只傳一個，在樣本裡只有第一個",
    "前缀的方差；过拟合；贪心搜索": "前綴的變異數；過度擬合；貪婪搜尋",
    "缓存、内存、默认、调用、字节、服务器": "快取、記憶體、預設、呼叫、位元組、伺服器",
    "位置信息与置信区间；语言代码": "位置資訊與信賴區間；語言代碼",
    "几兆字节的向量，两台机器": "幾MB的向量，兩台機器",
    "按系数组合起来，存成数组；五分之一的步数里": "按係數組合起來，存成陣列；五分之一的步數裡",
    "这样的函数叫钩子，或回调；把三个函数合并": "這樣的函式叫鉤子，或回呼；把三個函式合併",
    "学习率是步数的函数，这个函数就是排程；这个函数要求两维": "學習率是步數的函數，這個函數就是排程；這個函式要求兩維",
    "目标函数返回的损失；读取词典的函数返回条目": "目標函數回傳的損失；讀取詞典的函式回傳條目",
    "数据由函数体算出；两个函数；线性函数": "資料由函式主體算出；兩個函式；線性函數",
    "激活函数的类作为参数；这个类就是编码器；同类的单词": "激活函數的類別作為參數；這個類別就是編碼器；同類的單字",
    "对各个位置循环：每步一次；自注意力比循环慢": "對各個位置跑迴圈：每步一次；自注意力比循環慢",
    "退出循环，英语句子，for语句的循环体": "退出迴圈，英語句子，for陳述式的迴圈主體",
    "产出一条记录，两条路；八块GPU，分成几块": "產出一筆記錄，兩條路；八張GPU，分成幾塊",
    "可复现；把元素置为0，其他位置为0；更新之前报错": "可重現；把元素設為0，其他位置為0；更新之前引發",
    "条形变短，三条形状相同的曲线": "長條變短，三條形狀相同的曲線",
    "矩阵末尾增加几行；对一行做softmax；取出第2、3列；把各列混合": "矩陣末尾增加幾列；對一列做softmax；取出第2、3行；把各行混合",
    "表的各列（column）；表1没有内存这一列，下面的三列，一一列出": "表的各欄（column）；表1沒有記憶體這一欄，下面的三欄，一一列出",
    "下表每一行；每一行文字": "下表每一列；每一行文字",
    "两种算法的结果，学习加法的算法；Python的类。": "兩種算法的結果，學習加法的演算法；Python的類別。",
    "能达到的水平，随机水平；曲线是水平的，一条水平线": "能達到的水準，隨機水準；曲線是水平的，一條水平線",
    "两条几乎重合；40个旧句子；合并得到；数字符，连字符": "兩條幾乎重合；40個舊句子；合併得到；數字元，連字號",
    "由几个函数组成；值的线性函数；网络算不出的函数": "由幾個函式組成；值的線性函數；網路算不出的函數",
    "训练循环层；训练循环；这个循环里，这个循环网络": "訓練循環層；訓練迴圈；這個迴圈裡，這個循環網路",
    "所有的核都在用，两个EPYC核心；发送时间；添加了": "所有的核心都在用，兩個EPYC核心；傳送時間；新增了",
    "通过训练得到，通过训练好的模型；检验的结论，检验模型": "透過訓練得到，通過訓練好的模型；檢定的結論，檢驗模型",
    "语言列表之外，存进列表；网上的文本，互联网上": "語言清單之外，存進串列；網路上的文本，網際網路上",
    "自带的函数按链式法则求导，要求导出；各自带标签": "內建的函式按連鎖律微分，要求匯出；各自帶標籤",
    "公开的配置，分配置信度；许可信息，也许可以；国内，各国内部": "公開的設定，分配信賴度；授權資訊，也許可以；中國大陸，各國內部",
    "这样例如，编造样例；统计划分；数字符合": "這樣例如，編造範例；統計劃分；數字符合",
    "图注，图注意力网络；排查错误，并排查看；报道了计划": "圖說，圖注意力網路；追查錯誤，並排檢視；報導了計畫",
    "用现在时和过去时，德语的完成时；现在时间到了；宾语用宾格": "用現在式和過去式，德語的完成式；現在時間到了；受詞用受格",
    "源语言的代码，例如en；作者的代码": "來源語言的代碼，例如en；作者的程式碼",
    "滑动平均，滑动窗口；张量的下标，ε带有下标；正则语言与正则化": "移動平均，滑動視窗；張量的索引，ε帶有下標；正規語言與正則化",
    "文本文件，文本文件夹；叹号；同声传译；在本地；习语": "文字檔，文本資料夾；驚嘆號；同步口譯；在本機；慣用語",
    "用8位整数存储，fp32有23位，指数的位数；第2位，位置7位于中间": "用8位元整數儲存，fp32有23位元，指數的位元數；第2位，位置7位於中間",
    "换成另一种注意力函数；拼装好的模型；易错点；一般地，一般地址": "換成另一種注意力函式；組裝好的模型；常見錯誤；一般而言，一般網址",
    "临时文件夹，临时决定；手工读取，手工艺；随程序分发，一部分发生": "暫存資料夾，臨時決定；手動讀取，手工藝；隨程式散布，一部分發生",
    "强行终止；即使中途崩溃；损坏或者缺失，缺失值": "強制終止；即使中途當掉；損壞或者遺失，缺失值",
    "展开或折叠侧边栏导航；报告本页的问题，报告得分": "展開或收合側邊欄導覽；回報本頁的問題，報告得分",
}
PAGE = """<html lang="zh-Hans" xml:lang="zh-Hans"><head><link rel="alternate" hreflang="zh" href="{home}/zh/a.html">
<link rel="canonical" href="{home}/zh/a.html"><script>say = "头";</script></head>
<body title="头"><nav id="TOC">头</nav><main class="m"><nav class="page-links" aria-label="头"><a lang="en" href="../a.html">English</a>
<a lang="zh-Hant-TW" hreflang="zh-Hant-TW" href="../zh-hant/a.html">繁體</a></nav>
<p>头<code>头</code>&amp;“头”<br/></p><pre><code>头</code>头</pre><original-text lang="en">“头”</original-text>
<div lang="en"><div>头</div>“头”</div><p>头</p></main></body></html>"""


@pytest.fixture
def fake(monkeypatch):
    "What converts one word, in place of OpenCC."
    rules = lambda _: (lambda text: text.replace("头", "頭"), re.compile("(“)"), ["「"])
    monkeypatch.setattr(traditional, "converters", rules)


def changed(page: str, name: str) -> str:
    made = document_fromstring(page)
    traditional.change_page(made, name)
    return tostring(made, encoding="unicode")


def test_what_is_converted_of_a_page(fake):
    made = changed(PAGE, "a.html")
    kept = '<code>头</code>|<pre>.*?</pre>|<original-text.*?</original-text>|<div lang="en"><div>.*?</div>.*?</div>'
    assert len(re.findall(kept, made)) == 4
    assert "头" not in re.sub(kept, "", made) and "「頭”" in made and "&amp;" in made
    assert made.startswith('<html lang="zh-Hant-TW" xml:lang="zh-Hant-TW">')
    assert '<a lang="zh-Hans" hreflang="zh" href="../zh/a.html">简体</a>' in made
    assert ">繁體<" not in made and made.count('<p class="way">') == 1
    assert "OpenCC" in made and "/issues/new?title=a.html" in made
    made = changed(PAGE, SAYS["kept"][0])
    inside = made[made.index("</nav>\n<p>") :] if "</nav>\n<p>" in made else made
    assert '<main class="m" lang="zh-Hans">' in made and "<p>头<" in inside
    assert '<nav id="TOC">頭' in made and "沒有轉換" in made


def test_all_of_a_folder(fake, tmp_path):
    "Pages, search and notebooks are converted, addresses of the folder are its own, those of other languages stay."
    zh, home = tmp_path / "zh", "https://x.org/y"
    (zh / "notebooks").mkdir(parents=True)
    (zh / "a.html").write_text(PAGE.format(home=home), encoding="utf-8")
    for name in ("search.json", "notebooks/a.ipynb"):
        (zh / name).write_text(f'["头", "{home}/zh/a.html"]', encoding="utf-8")
    (zh / "site_libs").mkdir()
    (zh / "site_libs/a.js").write_text("头", encoding="utf-8")
    traditional.write(tmp_path, home)
    of = lambda name: (tmp_path / "zh-hant" / name).read_text(encoding="utf-8")
    for name in ("search.json", "notebooks/a.ipynb"):
        assert of(name) == f'["頭", "{home}/zh-hant/a.html"]'
    assert f'hreflang="zh" href="{home}/zh/a.html"' in of("a.html")
    assert f'rel="canonical" href="{home}/zh-hant/a.html"' in of("a.html")
    assert of("site_libs/a.js") == "头"


@pytest.fixture(scope="module")
def opencc():
    pytest.importorskip("opencc", reason="a requirement of the site alone: make docs")


@pytest.mark.parametrize("text", EXPECTED)
def test_words(opencc, text):
    assert convert(text) == EXPECTED[text]


def test_terms_are_those_of_the_table(opencc):
    "The first rendering of each term in Simplified Chinese becomes one that nbs/words.ipynb has for Taiwan."
    nb = notebook(traditional.ROOT / f"translations/{SAYS['of']}/words.md")
    row = r"^\| (?!English|-)[^|(]+ \| ([^|]+) \| ([^|]+) \|(?:[^|]+\|){2}$"
    text = "\n".join(joined(cell["source"]) for cell in nb["cells"])
    rows = re.findall(row, text.replace("1 ", "1"), re.M)
    made = [(convert(ours.split("、")[0]), theirs.split("、")) for ours, theirs in rows]
    assert len(made) > 100 and [m for m in made if m[0] not in m[1]] == []


def test_a_word_can_mean_another_thing_on_a_page(opencc):
    assert convert("循环") == "循環" and convert("循环", "train.html") == "迴圈"
    assert convert("循环体", "train.html") == "迴圈主體"
    assert convert("循环", "optimizer.html") == "迴圈"
    assert convert("德语的„…“，“a”", "vocab.html") == "德語的„…“，「a」"
    assert convert("一个流，轮流", "translate.html") == "一個串流，輪流"
    assert convert("每一行减去", "scoring.html") == "每一列減去"
    assert convert("内存块，每一块", "costs.html") == "記憶體區塊，每一塊"
    assert convert("每一块所需的内存", "costs.html") == "每一張所需的記憶體"
